"""Writes the rows of a parquet or Arrow file as lines of JSON, for `brigade`.

  python3 -c "$(cat table_rows.py)" FILE COLUMN

Of COLUMN alone, which must be text, or with an empty COLUMN of all of them.
A row without a text is {"": REASON}. What ends the reading is told on the
standard error and by the exit code: 3 a file or column that is wrong, 4 no
PyArrow, 5 no memory. Holds one batch of rows at a time.
"""
import os
import sys

# The working folder may hold modules of the same names.
sys.path = [folder for folder in sys.path if folder]

import json  # noqa: E402
import math  # noqa: E402
import signal  # noqa: E402

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except Exception:
    sys.exit(4)

BATCH_ROWS = 256
# With which damaged data ends the reading of a group of rows.
DAMAGE = (pa.ArrowException, OSError, ValueError, UnicodeError)


def refuse(reason):
    os.write(2, reason.encode("utf-8", "replace"))
    sys.exit(3)


def is_text(kind):
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    names = ("is_string", "is_large_string", "is_string_view")
    checks = [getattr(pa.types, name, None) for name in names]
    return any(check(kind) for check in checks if check)


def check_column(schema, column):
    if not column:
        return
    if column not in schema.names:
        refuse(f"there is no column '{column}'; --column (dataset.text_key) names "
               f"the one that holds the text: {', '.join(schema.names[:30])}")
    kind = schema.field(column).type
    if not is_text(kind):
        refuse(f"the column '{column}' holds {str(kind)[:100]}, not text; --column "
               "(dataset.text_key) names the one that holds the text")


def batches_of_parquet(path, column):
    try:
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20,
                              page_checksum_verification=True)
        schema = file.schema_arrow
    except DAMAGE:
        refuse("the footer cannot be read: the file is damaged, or is encrypted")
    check_column(schema, column)
    columns = [column] if column else None
    for group in range(file.num_row_groups):
        place = f"row group {group}"
        row = 0
        try:
            for batch in file.iter_batches(BATCH_ROWS, [group], columns):
                yield place, row, batch
                row += batch.num_rows
        except DAMAGE:
            refuse(f"{place}, {named(column)}, after row {row}: the data cannot be "
                   "read: the file is damaged")


def batches_of_arrow(path, column):
    place = "the header"
    try:
        with open(path, "rb") as source:
            is_file = source.read(6) == b"ARROW1"
            source.seek(0)
            reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
            check_column(reader.schema, column)
            number = 0
            while not is_file or number < reader.num_record_batches:
                place = f"record batch {number}"
                try:
                    batch = (reader.get_batch(number) if is_file
                             else reader.read_next_batch())
                except StopIteration:
                    return
                if column:
                    batch = batch.select([column])
                check_offsets(batch, column)
                for row in range(0, batch.num_rows, BATCH_ROWS):
                    yield place, row, batch.slice(row, BATCH_ROWS)
                number += 1
    except DAMAGE:
        refuse(f"{place}: the data cannot be read: the file is damaged or cut off")


def check_offsets(batch, column):
    """PyArrow takes an Arrow file's offsets as they stand, and crashes by them."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        # Offsets are looked at before the text: of one column that is a fault
        # of a row, which is told with its number.
        if not column or "UTF8" not in str(error):
            raise


def named(column):
    return f"column '{column}'" if column else "all columns"


def texts_of(column):
    try:
        return column.to_pylist()
    except UnicodeError:
        texts = []
        for value in column:
            try:
                texts.append(value.as_py())
            except UnicodeError:
                texts.append(b"")
        return texts


def plain(value):
    """What JSON has no form for: as text, or null."""
    return None if isinstance(value, (bytes, bytearray)) else str(value)


def without_nan(value):
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(each) for each in value]
    return value


encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), default=plain, allow_nan=False).encode


def lines_of_texts(place, first, batch, column):
    for i, text in enumerate(texts_of(batch.column(0))):
        if isinstance(text, str):
            yield encode({column: text})
        else:
            what = "null" if text is None else "not UTF-8"
            yield encode({"": f"{place}, row {first + i}: column '{column}' is {what}"})


def lines_of_rows(place, first, batch):
    for i in range(batch.num_rows):
        try:
            row = batch.slice(i, 1).to_pylist()[0]
        except UnicodeError:
            yield encode({"": f"{place}, row {first + i}: a text is not UTF-8"})
            continue
        try:
            yield encode(row)
        except ValueError:
            yield encode(without_nan(row))


def main():
    # Of a reader that is gone.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    path, column = sys.argv[1:]
    batches = (batches_of_arrow if path.endswith(".arrow")
               else batches_of_parquet)(path, column)
    out = sys.stdout.buffer
    for place, first, batch in batches:
        lines = (lines_of_texts(place, first, batch, column) if column
                 else lines_of_rows(place, first, batch))
        out.write("".join(line + "\n" for line in lines).encode())
    out.flush()


try:
    main()
except MemoryError:
    sys.exit(5)
