#include "faulty_disk.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <mutex>

namespace brigade::testing {
namespace {

std::atomic<bool> is_armed{false};
std::mutex mutex;
DiskFault armed;
std::vector<std::string> calls;

std::string path_of(int descriptor) {
  char link[64];
  char path[4096];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = ::readlink(link, path, sizeof(path));
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
}

// Whether this call is to fail; sets errno.
bool fails(const char* call, const std::string& path) {
  const std::lock_guard lock(mutex);
  if (path.find(armed.path_part) == std::string::npos)
    return false;
  calls.push_back(std::string(call) + " " + path);
  if (static_cast<int>(calls.size()) != armed.at)
    return false;
  if (armed.error == 0)
    ::kill(::getpid(), SIGKILL);
  errno = armed.error;
  return true;
}

}  // namespace

void arm_disk(const DiskFault& fault) {
  {
    const std::lock_guard lock(mutex);
    armed = fault;
    calls.clear();
  }
  is_armed = true;
}

void disarm_disk() {
  is_armed = false;
}

std::vector<std::string> disk_calls() {
  const std::lock_guard lock(mutex);
  return calls;
}

}  // namespace brigade::testing

using brigade::testing::fails;
using brigade::testing::is_armed;
using brigade::testing::path_of;

extern "C" {

ssize_t write(int descriptor, const void* data, size_t size) {
  if (is_armed && fails("write", path_of(descriptor)))
    return -1;
  return ::syscall(SYS_write, descriptor, data, size);
}

int fsync(int descriptor) {
  if (is_armed && fails("fsync", path_of(descriptor)))
    return -1;
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
    if (is_armed && fails("create", path))
      return -1;
  }
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int mkdir(const char* path, mode_t mode) noexcept {
  if (is_armed && fails("mkdir", path))
    return -1;
  return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

int rename(const char* from, const char* to) noexcept {
  if (is_armed && fails("rename", from))
    return -1;
  return static_cast<int>(
      ::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int renameat2(
    int from_folder,
    const char* from,
    int to_folder,
    const char* to,
    unsigned flags) noexcept {
  if (is_armed && fails("exchange", from))
    return -1;
  return static_cast<int>(
      ::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

// A failed removal never fails a save, but a kill may come before it.
int unlinkat(int folder, const char* path, int flags) noexcept {
  if (is_armed && fails("unlink", path_of(folder) + "/" + path))
    return -1;
  return static_cast<int>(::syscall(SYS_unlinkat, folder, path, flags));
}
}
