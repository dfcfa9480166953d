#include "brigade/files/folder_lock.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/files/lock.h"
#include "brigade/json/parse.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

// What the file says, or an empty object while it is being written.
json parse_holder(const std::string& text) {
  const json holder = parse_json_or_nothing(text).value_or(json::object());
  return holder.is_object() ? holder : json::object();
}

std::string describe(const json& holder) {
  return fmt::format(
      "process {} on host {}, which started at {}",
      holder.value("pid", int64_t{0}),
      holder.value("host", std::string("unknown")),
      holder.value("start", std::string("an unknown time")));
}

[[noreturn]] void throw_held(
    const fs::path& folder,
    const std::string& what,
    const json& holder) {
  throw ConfigError(fmt::format(
      "[lock] {} '{}' is in use by {}; wait for it to end, stop it, or choose "
      "another folder",
      what,
      folder.string(),
      describe(holder)));
}

}  // namespace

FolderLock::FolderLock(
    const fs::path& folder,
    const std::string& what,
    const FolderLockOptions& options)
    : options_(options), path_(folder / "lock") {
  if (options_.host.empty())
    options_.host = host_name();
  start_ =
      fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(::time(nullptr)));
  acquire(folder, what);
  thread_ = std::thread([this] { beat(); });
}

FolderLock::~FolderLock() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  // Before the lock is released: a process that waits for it then sees that the
  // file has no name any more, and opens a new one.
  ::unlink(path_.c_str());
}

void FolderLock::acquire(const fs::path& folder, const std::string& what) {
  do {
    descriptor_ =
        Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!descriptor_.is_open()) {
      throw StorageError(fmt::format(
          "[lock] cannot open '{}': {}", path_.string(), std::strerror(errno)));
    }
    if (::flock(descriptor_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK)
        throw_held(folder, what, parse_holder(read_holder()));
      // A file system without locks: the heartbeat alone decides.
    }
  } while (!is_current(descriptor_, path_));
  check_heartbeat(folder.string(), what);
  write_holder(0);
}

void FolderLock::check_heartbeat(
    const std::string& folder,
    const std::string& what) {
  const std::string before = read_holder();
  const json holder = parse_holder(before);
  // On this host the kernel's lock has shown that the holder is gone.
  if (before.empty() || holder.value("host", std::string()) == options_.host)
    return;
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < options_.stale) {
    std::this_thread::sleep_for(options_.stale / 20);
    if (read_holder() != before)
      throw_held(folder, what, holder);
  }
}

std::string FolderLock::read_holder() const {
  std::string text(4096, '\0');
  const ssize_t count = ::pread(descriptor_.get(), text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return text;
}

void FolderLock::write_holder(int64_t beat) {
  const json holder = {
      {"host", options_.host},
      {"pid", ::getpid()},
      {"start", start_},
      {"heartbeat", beat}};
  const std::string text = holder.dump() + "\n";
  const bool is_written =
      ::pwrite(descriptor_.get(), text.data(), text.size(), 0) ==
          static_cast<ssize_t>(text.size()) &&
      ::ftruncate(descriptor_.get(), static_cast<off_t>(text.size())) == 0;
  if (!is_written && beat == 0) {
    throw StorageError(fmt::format(
        "[lock] cannot write '{}': {}", path_.string(), std::strerror(errno)));
  }
}

void FolderLock::beat() {
  std::unique_lock lock(mutex_);
  for (int64_t beat = 1;; ++beat) {
    if (changed_.wait_for(lock, options_.heartbeat, [&] { return stopping_; }))
      return;
    write_holder(beat);
  }
}

}  // namespace brigade
