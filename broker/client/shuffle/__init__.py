"""The shuffle client: writes result partitions to a broker or within the process, and reads them from there or from Flink."""
