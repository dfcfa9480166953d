// The rows of a parquet or Arrow file (.parquet, .arrow: what Hugging Face's
// datasets are made of) as lines of JSON. They are read by PyArrow in a process
// of its own, group of rows by group of rows, over a pipe that holds it back:
// Debian has no library for these formats.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "brigade/data/byte_stream.h"

namespace brigade {

struct TableOptions {
  // The column whose text is read, as {"COLUMN": TEXT}, one line per row; a row
  // without a text is {"": REASON}. Empty: all columns, nested ones too.
  std::string column;
  std::string python = "python3";  // a program, looked up on PATH
};

// By its name.
bool is_table(const std::filesystem::path& path);

// Throws DataError naming the file for one that is not of its format, is cut
// off or damaged (with the group of rows), or lacks the column as text, at once
// or when it is read; ConfigError where there is no Python with PyArrow.
std::unique_ptr<ByteStream> open_table(
    const std::filesystem::path& path,
    const TableOptions& options);

}  // namespace brigade
