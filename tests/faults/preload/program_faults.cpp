// Preloaded into the program by tests (LD_PRELOAD): a slow disk, and ranks that
// fail in the middle of a step. Driven by the environment, which
// program_faults.h writes:
//
//   BRIGADE_TEST_SLOW_DISK=PATH_PART:BYTES_PER_SECOND
//   BRIGADE_TEST_FAILURE=RANK:COUNT:HOW
//
// Every step of every rank reads /proc/self/statm on the thread that trains;
// at the COUNT-th time the rank fails: HOW is throw, exit, abort, fault, spin
// or block.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <string>

namespace {

struct SlowDisk {
  std::string path_part;
  double bytes_per_second = 0;  // 0: as fast as it is
};

const SlowDisk& slow_disk() {
  static const SlowDisk disk = [] {
    SlowDisk read;
    const char* text = ::getenv("BRIGADE_TEST_SLOW_DISK");
    const char* colon = text == nullptr ? nullptr : ::strrchr(text, ':');
    if (colon != nullptr) {
      read.path_part.assign(text, colon);
      read.bytes_per_second = ::atof(colon + 1);
    }
    return read;
  }();
  return disk;
}

bool is_slow(int descriptor) {
  if (slow_disk().bytes_per_second == 0)
    return false;
  char link[64];
  char path[4096];
  ::snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = ::readlink(link, path, sizeof(path) - 1);
  if (length <= 0)
    return false;
  path[length] = '\0';
  return ::strstr(path, slow_disk().path_part.c_str()) != nullptr;
}

void sleep_seconds(double seconds) {
  timespec time{};
  time.tv_sec = static_cast<time_t>(seconds);
  time.tv_nsec =
      static_cast<long>((seconds - static_cast<double>(time.tv_sec)) * 1e9);
  while (::nanosleep(&time, &time) != 0) {
  }
}

void fail_if_due() {
  static std::atomic<int> count{0};
  const char* text = ::getenv("BRIGADE_TEST_FAILURE");
  const char* rank = ::getenv("RANK");
  if (text == nullptr || rank == nullptr)
    return;
  int wanted_rank = 0;
  int wanted_count = 0;
  char how[16] = {};
  if (::sscanf(text, "%d:%d:%15s", &wanted_rank, &wanted_count, how) != 3 ||
      ::atoi(rank) != wanted_rank || ++count != wanted_count)
    return;
  const std::string kind = how;
  if (kind == "throw")
    throw std::runtime_error("thrown in the middle of a step");
  if (kind == "exit")
    ::exit(7);
  if (kind == "abort")
    ::abort();
  if (kind == "fault")
    ::raise(SIGSEGV);
  while (kind == "spin") {
    static volatile int turns = 0;
    turns = turns + 1;
  }
  while (kind == "block")
    ::pause();
}

FILE* open_stream(const char* name, const char* path, const char* mode) {
  if (::strcmp(path, "/proc/self/statm") == 0)
    fail_if_due();
  using Open = FILE* (*)(const char*, const char*);
  return reinterpret_cast<Open>(::dlsym(RTLD_NEXT, name))(path, mode);
}

}  // namespace

extern "C" {

ssize_t write(int descriptor, const void* data, size_t size) {
  const ssize_t count = ::syscall(SYS_write, descriptor, data, size);
  if (count > 0 && is_slow(descriptor))
    sleep_seconds(static_cast<double>(count) / slow_disk().bytes_per_second);
  return count;
}

FILE* fopen(const char* path, const char* mode) {
  return open_stream("fopen", path, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  return open_stream("fopen64", path, mode);
}

}  // extern "C"
