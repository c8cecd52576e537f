"""The exchange: a shuffle of a DataFrame through the broker. Its entrance is the function ``broker.spark.exchange``."""
