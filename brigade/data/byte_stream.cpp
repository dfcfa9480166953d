#include "brigade/data/byte_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/files/descriptor.h"
#include "brigade/files/read_once.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

constexpr size_t kInputBytes = 256 << 10;

// The file as it is on disk.
class FileStream : public ByteStream {
 public:
  explicit FileStream(const fs::path& path)
      : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (!descriptor_.is_open()) {
      throw DataError(fmt::format(
          "[text_reader] cannot open '{}': {}",
          input_name(path),
          std::strerror(errno)));
    }
    struct stat status {};
    if (::fstat(descriptor_.get(), &status) != 0 || S_ISDIR(status.st_mode))
      throw DataError(
          fmt::format("[text_reader] '{}' is not a file", input_name(path)));
  }

  size_t read(char* out, size_t size) override {
    size_t done = std::min(size, peeked_.size());
    std::memcpy(out, peeked_.data(), done);
    peeked_.erase(0, done);
    while (done < size) {
      const ssize_t count = ::read(descriptor_.get(), out + done, size - done);
      if (count < 0 && errno == EINTR)
        continue;
      if (count < 0) {
        throw StorageError(fmt::format(
            "[text_reader] cannot read '{}' at byte {}: {}",
            input_name(path_),
            position_,
            std::strerror(errno)));
      }
      if (count == 0)
        break;
      done += static_cast<size_t>(count);
      position_ += static_cast<uint64_t>(count);
    }
    return done;
  }
  uint64_t file_position() const override { return position_; }

  // The first bytes, which read() will give again: pipes cannot seek.
  // Precondition: nothing was read yet.
  std::string_view peek(size_t size) {
    std::string begin(size, '\0');
    begin.resize(read(begin.data(), size));
    peeked_ = std::move(begin);
    return peeked_;
  }

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  Descriptor descriptor_;
  std::string peeked_;
  uint64_t position_ = 0;
};

// What both decompressors share: the file, a buffer of its bytes, errors.
class CompressedStream : public ByteStream {
 public:
  explicit CompressedStream(std::unique_ptr<FileStream> file)
      : file_(std::move(file)), input_(kInputBytes) {}
  uint64_t file_position() const override { return file_->file_position(); }

 protected:
  // More input, or 0 at the end of the file.
  size_t fill() { return file_->read(input_.data(), input_.size()); }
  // `unused`: bytes of the buffer that were not looked at yet.
  [[noreturn]] void fail(size_t unused, std::string_view what) const {
    throw DataError(fmt::format(
        "[{}] at byte {} of the compressed file: {}",
        input_name(file_->path()),
        file_->file_position() - unused,
        what));
  }

  std::unique_ptr<FileStream> file_;
  std::vector<char> input_;
};

class GzipStream : public CompressedStream {
 public:
  explicit GzipStream(std::unique_ptr<FileStream> file)
      : CompressedStream(std::move(file)) {
    // 15 bits of window, + 16 for gzip's header and checksum.
    if (inflateInit2(&zlib_, 15 + 16) != Z_OK)
      throw std::bad_alloc();
  }
  ~GzipStream() override { inflateEnd(&zlib_); }

  size_t read(char* out, size_t size) override {
    zlib_.next_out = reinterpret_cast<Bytef*>(out);
    zlib_.avail_out = static_cast<uInt>(size);
    while (zlib_.avail_out > 0) {
      if (zlib_.avail_in == 0 && !refill())
        break;
      if (between_members_) {
        // gzip files may be concatenated, and padded with zeros.
        if (*zlib_.next_in == 0) {
          ++zlib_.next_in;
          --zlib_.avail_in;
          continue;
        }
        inflateReset(&zlib_);
        between_members_ = false;
      }
      const int result = inflate(&zlib_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) {
        between_members_ = true;
      } else if (result == Z_MEM_ERROR) {
        throw std::bad_alloc();
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        fail(
            zlib_.avail_in,
            "damaged gzip: its header, its data or their checksum is wrong; "
            "fetch or compress the file again");
      }
    }
    return size - zlib_.avail_out;
  }

 private:
  bool refill() {
    zlib_.next_in = reinterpret_cast<Bytef*>(input_.data());
    zlib_.avail_in = static_cast<uInt>(fill());
    if (zlib_.avail_in == 0 && !between_members_)
      fail(0, "the gzip stream is cut off");
    return zlib_.avail_in > 0;
  }

  z_stream zlib_{};
  bool between_members_ = false;
};

// What is wrong, in Brigade's words. std::bad_alloc where memory ran out.
std::string_view describe_zstd_error(size_t result) {
  switch (ZSTD_getErrorCode(result)) {
    case ZSTD_error_memory_allocation:
      throw std::bad_alloc();
    case ZSTD_error_checksum_wrong:
      return "damaged zstd: the data does not fit its checksum; fetch or "
             "compress the file again";
    case ZSTD_error_dictionary_wrong:
      return "this zstd file was compressed with a dictionary, which is not at "
             "hand; compress it again without";
    case ZSTD_error_frameParameter_windowTooLarge:
      return "this zstd file needs a window of more than 128 MiB; compress it "
             "again without --long";
    case ZSTD_error_prefix_unknown:
      return "damaged zstd: no frame begins here; fetch or compress the file "
             "again";
    default:
      return "damaged zstd: the data is not what zstd writes; fetch or "
             "compress the file again";
  }
}

class ZstdStream : public CompressedStream {
 public:
  explicit ZstdStream(std::unique_ptr<FileStream> file)
      : CompressedStream(std::move(file)), zstd_(ZSTD_createDCtx()) {
    if (zstd_ == nullptr)
      throw std::bad_alloc();
  }
  ~ZstdStream() override { ZSTD_freeDCtx(zstd_); }

  size_t read(char* out, size_t size) override {
    ZSTD_outBuffer output{out, size, 0};
    while (output.pos < output.size) {
      if (pending_.pos == pending_.size) {
        pending_ = {input_.data(), fill(), 0};
        if (pending_.size == 0) {
          if (!between_frames_)
            fail(0, "the zstd stream is cut off");
          break;
        }
      }
      const size_t result = ZSTD_decompressStream(zstd_, &output, &pending_);
      if (ZSTD_isError(result) != 0) {
        fail(pending_.size - pending_.pos, describe_zstd_error(result));
      }
      between_frames_ = result == 0;
    }
    return output.pos;
  }

 private:
  ZSTD_DCtx* zstd_;
  ZSTD_inBuffer pending_{nullptr, 0, 0};
  bool between_frames_ = false;
};

}  // namespace

std::unique_ptr<ByteStream> open_byte_stream(const fs::path& path) {
  auto file = std::make_unique<FileStream>(path);
  const std::string_view magic = file->peek(4);
  if (magic.starts_with("\x1f\x8b"))
    return std::make_unique<GzipStream>(std::move(file));
  // A frame of zstd, or a skippable one of any of its 16 numbers in front.
  const bool is_skippable = magic.size() == 4 && (magic[0] & 0xF0) == 0x50 &&
                            magic.substr(1) == "\x2a\x4d\x18";
  if (magic.starts_with("\x28\xb5\x2f\xfd") || is_skippable)
    return std::make_unique<ZstdStream>(std::move(file));
  return file;
}

}  // namespace brigade
