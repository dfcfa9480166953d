#include "brigade/files/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <system_error>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/base/units.h"
#include "brigade/files/descriptor.h"
#include "brigade/files/output_path.h"
#include "brigade/files/usual_path.h"

namespace brigade {
namespace {

constexpr uint64_t kPieceBytes = 4 * MiB;
// Pieces by which hashing may fall behind, in a file that is hashed.
constexpr size_t kPiecesInFlight = 4;
// What direct writes ask of memory, sizes and positions, or less.
constexpr size_t kDirectAlignment = 4096;

[[noreturn]] void throw_storage(
    const char* what,
    const std::filesystem::path& path) {
  const int error = errno;
  const char* advice = "";
  if (error == ENOSPC)
    advice = "; free some space and run again";
  else if (error == EFBIG)
    advice = "; the limit of file sizes is lower: see ulimit -f";
  throw StorageError(fmt::format(
      "[file] cannot {} '{}': {}{}",
      what,
      path.string(),
      std::strerror(error),
      advice));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // Not to wait for the writer of a pipe (FIFO), which is refused below; a
  // regular file is read as ever.
  const Descriptor descriptor(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor.is_open()) {
    const int error = errno;
    refuse_loop(path);
    errno = error;
    throw DataError(fmt::format(
        "[file] cannot open '{}': {}", path.string(), std::strerror(errno)));
  }
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0 || !S_ISREG(status.st_mode))
    throw DataError(
        fmt::format("[file] '{}' is not a regular file", path.string()));
  size_bytes_ = static_cast<uint64_t>(status.st_size);
  if (size_bytes_ > 0) {
    data_ = ::mmap(
        nullptr, size_bytes_, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
  }
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    // Says nothing about the file.
    if (errno == ENOMEM) {
      throw Error(
          ExitCode::kUnexpected,
          fmt::format(
              "[file] out of memory: cannot map '{}' ({} bytes); look for a "
              "limit of this process's address space (ulimit -v)",
              path.string(),
              size_bytes_));
    }
    throw DataError(fmt::format(
        "[file] cannot map '{}' ({} bytes): {}",
        path.string(),
        size_bytes_,
        std::strerror(errno)));
  }
  refuse_large_file_pointer();
}

// What stands in a clone of a repository for a file that was not fetched.
void MappedFile::refuse_large_file_pointer() const {
  if (!text().starts_with("version https://git-lfs.github.com/spec"))
    return;
  throw DataError(fmt::format(
      "[file] '{}' is a pointer of Git LFS, not the file: run `git lfs pull` "
      "in its repository, or download the file",
      path_.string()));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr)
    ::munmap(data_, size_bytes_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

AtomicFile::AtomicFile(std::filesystem::path path, Digest digest)
    : path_(std::move(path)),
      temporary_path_(fmt::format("{}.tmp-{}", path_.string(), ::getpid())) {
  // The rename would put a file in the place of a device, for every program.
  std::error_code ignored;
  if (is_written_in_place(path_) ||
      std::filesystem::is_directory(
          std::filesystem::symlink_status(path_, ignored)))
    throw StorageError(fmt::format(
        "[file] cannot write '{}': it is no regular file, and what is written "
        "here is a file that is whole or absent; give another name",
        path_.string()));
  descriptor_ = ::open(
      temporary_path_.c_str(),
      O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
      S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH);
  if (descriptor_ < 0)
    throw_storage("create", temporary_path_);
  if (digest == Digest::kSha256)
    hash_.emplace();
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0)
    return;
  ::close(descriptor_);
  ::unlink(temporary_path_.c_str());
}

void AtomicFile::write(const void* data, uint64_t size_bytes) {
  const auto* bytes = static_cast<const std::byte*>(data);
  written_bytes_ += size_bytes;
  while (size_bytes > 0) {
    if (filled_bytes_ == kPieceBytes)
      flush();
    if (filled_piece_ == pieces_.size()) {
      void* memory = std::aligned_alloc(kDirectAlignment, kPieceBytes);
      if (memory == nullptr)
        throw std::bad_alloc();
      pieces_.emplace_back(static_cast<std::byte*>(memory), &std::free);
    }
    const uint64_t count = std::min(size_bytes, kPieceBytes - filled_bytes_);
    std::memcpy(pieces_[filled_piece_].get() + filled_bytes_, bytes, count);
    filled_bytes_ += count;
    bytes += count;
    size_bytes -= count;
  }
}

void AtomicFile::flush() {
  if (filled_bytes_ == 0)
    return;
  const std::byte* piece = pieces_[filled_piece_].get();
  if (hash_)
    hash_->add({piece, filled_bytes_});
  const bool is_full = filled_bytes_ == kPieceBytes;
  if (hash_ && is_full != is_direct_)
    set_direct(is_full);
  write_piece(piece, filled_bytes_);
  filled_bytes_ = 0;
  if (hash_) {
    filled_piece_ = (filled_piece_ + 1) % kPiecesInFlight;
    hash_->wait(kPiecesInFlight - 1);
  }
}

void AtomicFile::write_piece(const std::byte* data, uint64_t size_bytes) {
  while (size_bytes > 0) {
    const ssize_t count = ::write(descriptor_, data, size_bytes);
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0 && errno == EINVAL && is_direct_) {
      set_direct(false);  // aligned to less than this device asks for
      continue;
    }
    if (count < 0)
      throw_storage("write", temporary_path_);
    data += count;
    size_bytes -= static_cast<uint64_t>(count);
    // What is left of a write that was cut short is not aligned.
    if (size_bytes > 0 && is_direct_)
      set_direct(false);
  }
}

// Where the file system has no direct writes, all of them are through the page
// cache.
void AtomicFile::set_direct(bool is_direct) {
  const int flags = ::fcntl(descriptor_, F_GETFL);
  const int wanted = is_direct ? flags | O_DIRECT : flags & ~O_DIRECT;
  is_direct_ =
      flags >= 0 && ::fcntl(descriptor_, F_SETFL, wanted) == 0 && is_direct;
}

void AtomicFile::commit() {
  flush();
  if (::fsync(descriptor_) != 0)
    throw_storage("sync", temporary_path_);
  const auto fail = [&](const char* what, const std::filesystem::path& path) {
    const int error = errno;
    ::unlink(temporary_path_.c_str());
    errno = error;
    throw_storage(what, path);
  };
  if (::close(std::exchange(descriptor_, -1)) != 0)
    fail("close", temporary_path_);
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0)
    fail("rename into place", path_);
  sync_directory(path_.parent_path());
}

FileDigest AtomicFile::digest() {
  BRIGADE_ASSERT(
      hash_ && descriptor_ < 0, "the digest of '{}'", path_.string());
  return {written_bytes_, hash_->finish()};
}

std::string read_text_file(const std::filesystem::path& path) {
  return std::string(MappedFile(path).text());
}

std::string value_in(
    const std::filesystem::path& path,
    std::string_view key,
    char between) {
  constexpr const char* kAround = " \t\"";
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(between);
    if (!line.starts_with(key) || at == std::string::npos)
      continue;
    const size_t begin = line.find_first_not_of(kAround, at + 1);
    const size_t end = line.find_last_not_of(kAround) + 1;
    return begin == std::string::npos ? "" : line.substr(begin, end - begin);
  }
  return "";
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  if (is_written_in_place(path))
    return write_in_place(path, text);
  AtomicFile file(link_target(path));
  file.write(text);
  file.commit();
}

void sync_directory(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory.empty() ? "." : directory;
  const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!descriptor.is_open())
    throw_storage("open folder", path);
  // Some file systems cannot sync a folder (EINVAL); the rename still holds.
  if (::fsync(descriptor.get()) != 0 && errno != EINVAL)
    throw_storage("sync folder", path);
}

std::filesystem::path with_suffix(
    std::filesystem::path path,
    std::string_view suffix) {
  path += suffix;
  return path;
}

}  // namespace brigade
