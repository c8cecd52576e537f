"""The exchange: a shuffle of a DataFrame through the broker. ``broker.spark.exchange`` is its function."""
