"""Record batches to Arrow columns and back. Needs pyarrow and numpy."""
