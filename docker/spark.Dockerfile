# The pipeline of docs/PIPELINE.md as an image: docker build -f docker/spark.Dockerfile -t reactor-broker-spark .
# (from the top of the repository; `docker compose up` runs it against the `broker` service)

FROM python:3.14-slim
# Spark is a Java program; the broker and its data source are not.
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends default-jre-headless \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY packaging/accelerator.py packaging/
COPY protocol protocol
COPY broker broker
RUN python -m venv /opt/broker && /opt/broker/bin/python -m pip install --no-cache-dir --disable-pip-version-check '.[spark]'
COPY docs/examples/pipeline.py /opt/pipeline.py
# Spark asks the system for the name of its user, so there has to be one.
RUN useradd --uid 10001 --create-home spark && mkdir /checkpoint && chown spark /checkpoint
ENV PATH=/opt/broker/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /home/spark
VOLUME /checkpoint
ENTRYPOINT ["python", "/opt/pipeline.py"]
# Counts the words of Python's reference text, prints the most frequent ones, and ends. Started again it goes on where it was.
CMD ["--bootstrap-servers", "broker:19092", "--checkpoint", "/checkpoint", "--feed"]
