// A file that grows by lines: metrics.jsonl, events.jsonl.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "brigade/files/descriptor.h"

namespace brigade {

// Each line is with the kernel once append() returns. What a full disk refused
// waits, and is written before the next line, so that none is lost where there
// is room again. One thread may call it.
class LineFile {
 public:
  // Appends to what is there, and writes the lines that wait. Throws
  // StorageError that names the path, also where it is a pipe (FIFO) or another
  // file that is not regular.
  void open(const std::filesystem::path& path);

  // `line` without its end. Waits before open(). Throws StorageError that names
  // the path; the line waits then.
  void append(std::string_view line);

 private:
  void write_waiting();

  std::filesystem::path path_;
  Descriptor descriptor_;
  std::string waiting_;
};

}  // namespace brigade
