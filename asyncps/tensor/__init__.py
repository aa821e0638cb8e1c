"""Tensors as asyncps sees them: dtypes, arrays, pooled memory, the values that a server keeps."""
