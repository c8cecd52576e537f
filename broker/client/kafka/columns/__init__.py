"""Record batches to Arrow columns and back. Needs pyarrow and numpy, which the extra ``spark`` installs."""
