#include "brigade/data/table_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>
#include <system_error>
#include <vector>

#include "brigade/base/embedded.h"
#include "brigade/base/error.h"
#include "brigade/files/descriptor.h"
#include "brigade/launch/helper_process.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// Exit codes of table_rows.py.
constexpr int kRefused = 3;
constexpr int kNoPyArrow = 4;
constexpr int kNoMemory = 5;

[[noreturn]] void throw_without_python(
    const fs::path& path,
    const std::string& python,
    std::string_view what) {
  throw ConfigError(fmt::format(
      "[table] '{}' is read by Python with PyArrow, and {}: install it (pip "
      "install pyarrow), name a Python that has it with --python "
      "(dataset.python), or convert the file to .jsonl",
      path.string(),
      fmt::format(fmt::runtime(what), python)));
}

// A parquet file begins and ends with the same four bytes, in front of the last
// of which stands the length of its footer.
void check_parquet(const fs::path& path) {
  constexpr std::string_view kMagic = "PAR1";
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open())
    throw DataError(fmt::format(
        "[table] cannot open '{}': {}", path.string(), std::strerror(errno)));
  std::array<char, 4> first{};
  std::array<char, 8> last{};
  const off_t size = ::lseek(file.get(), 0, SEEK_END);
  const bool is_long_enough = size >= 12;
  if (is_long_enough) {
    // What cannot be read stays zero.
    static_cast<void>(
        ::pread(file.get(), first.data(), first.size(), 0) +
        ::pread(file.get(), last.data(), last.size(), size - 8));
  }
  if (std::string_view(first.data(), 4) != kMagic)
    throw DataError(fmt::format(
        "[{}] at byte 0: not a parquet file: it does not begin with \"PAR1\"",
        path.string()));
  if (std::string_view(last.data() + 4, 4) != kMagic)
    throw DataError(fmt::format(
        "[{}] at byte {}: the parquet file is cut off: it does not end with "
        "\"PAR1\"; fetch it again",
        path.string(),
        size - 4));
  uint32_t footer_bytes = 0;
  std::memcpy(&footer_bytes, last.data(), sizeof(footer_bytes));
  if (footer_bytes > size - 12)
    throw DataError(fmt::format(
        "[{}] at byte {}: a footer of {} bytes in a file of {}: the file is "
        "damaged or cut off; fetch it again",
        path.string(),
        size - 8,
        footer_bytes,
        size));
}

class TableStream : public ByteStream {
 public:
  TableStream(const fs::path& path, const TableOptions& options)
      : path_(path), python_(options.python) {
    std::error_code unknown;
    size_bytes_ = fs::file_size(path, unknown);
    try {
      reader_ = std::make_unique<HelperProcess>(std::vector<std::string>{
          options.python,
          "-c",
          std::string(embedded::table_rows_py),
          path.string(),
          options.column});
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::no_such_file_or_directory ||
          error.code() == std::errc::permission_denied ||
          error.code() == std::errc::not_a_directory)
        throw_without_python(path, python_, "there is no program '{}'");
      fail(error);
    }
  }

  size_t read(char* out, size_t size) override {
    size_t done = 0;
    while (done < size && !reader_->has_ended()) {
      try {
        done += reader_->read(out + done, size - done);
      } catch (const std::system_error& error) {
        fail(error);
      }
      if (reader_->has_ended())
        check_end(reader_->status());
    }
    return done;
  }

  // The other process reads it; how far it is, is known at the end alone.
  uint64_t file_position() const override {
    return reader_->has_ended() ? size_bytes_ : 0;
  }

 private:
  [[noreturn]] void fail(const std::system_error& error) const {
    throw StorageError(fmt::format(
        "[table] cannot run the reader of '{}': {}",
        path_.string(),
        error.code().message()));
  }

  void check_end(int status) const {
    if (status == 0)
      return;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == kNoPyArrow)
      throw_without_python(path_, python_, "'{}' has no PyArrow");
    if (code == kNoMemory)
      throw std::bad_alloc();
    if (code == 126 || code == 127)  // execve() in the new process
      throw_without_python(path_, python_, "'{}' cannot be started");
    if (code == kRefused)
      throw DataError(
          fmt::format("[{}] {}", path_.string(), reader_->errors()));
    throw DataError(fmt::format(
        "[{}] the process that reads it ('{}' with PyArrow) ended with {} {}: "
        "the file is damaged in a way that PyArrow does not survive, or the "
        "process was ended from outside",
        path_.string(),
        python_,
        code >= 0 ? "exit code" : "signal",
        code >= 0 ? code : WTERMSIG(status)));
  }

  fs::path path_;
  std::string python_;
  uint64_t size_bytes_ = 0;
  std::unique_ptr<HelperProcess> reader_;
};

}  // namespace

bool is_table(const fs::path& path) {
  return path.extension() == ".parquet" || path.extension() == ".arrow";
}

std::unique_ptr<ByteStream> open_table(
    const fs::path& path,
    const TableOptions& options) {
  if (path.extension() == ".parquet")
    check_parquet(path);
  return std::make_unique<TableStream>(path, options);
}

}  // namespace brigade
