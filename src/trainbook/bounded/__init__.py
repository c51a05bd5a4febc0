"""Files that somebody may have handed over are read here, each format within limits: no file hangs or floods a reader.

files.py        bytes and text of regular files, up to a size; of gzip, bzip2, xz and zstd, how much more comes out
json_text.py    JSON: depth, values, digits
yaml_text.py    YAML: size, depth, values after aliases are expanded, digits
tables.py       CSV: columns and cells
arrow.py        Parquet and Arrow: how much more comes out than lies in the file
arrays.py       numpy's files, and weights in safetensors

A file that goes beyond a limit is a BeyondBounds: the file, the line where there is one, the limit and the value. It is
a UserError (exit code 2), and a ValueError, as a file with faulty contents is. A test walks the source and fails where
a parser is called elsewhere.
"""
