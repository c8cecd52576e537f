"""A SPARK_HOME for clusters that tests start."""

import os


def home(directory: str) -> str:
    """A SPARK_HOME with all files of pyspark, and room for the files that Spark writes there."""
    import pyspark

    installed = os.path.dirname(pyspark.__file__)
    made = os.path.join(directory, "spark")
    os.mkdir(made)
    for name in ("bin", "sbin", "jars", "python"):
        if os.path.exists(os.path.join(installed, name)):
            os.symlink(os.path.join(installed, name), os.path.join(made, name))
    return made
