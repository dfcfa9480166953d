// Preloaded into the program by tests (LD_PRELOAD): a slow disk, one that
// blocks for a while, and ranks that fail or wait in the middle of a step.
// Controlled by the environment, which program_faults.h writes:
//
//   BRIGADE_TEST_SLOW_DISK=PATH_PART:BYTES_PER_SECOND
//   BRIGADE_TEST_HELD_DISK=PATH_PART:FILE, held while FILE exists
//   BRIGADE_TEST_FAILURE=RANK:COUNT:HOW
//   BRIGADE_TEST_HELD_STEPS=FILE, which holds a COUNT
//   BRIGADE_TEST_SIGNAL_WHILE_LOADING=NUMBER, which brigade-torch gets
//
// Every step of every rank reads /proc/self/statm on the training thread. At
// the COUNT-th time the rank fails: HOW is throw, exit, abort, fault, spin or
// block. After the COUNT-th time each rank waits while FILE exists.
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
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

// A delay of writes below some paths.
struct DiskFault {
  std::string path_part;  // empty: nothing
  std::string how;        // bytes per second, or the file that holds them
};

DiskFault read_disk_fault(const char* variable) {
  DiskFault fault;
  const char* text = ::getenv(variable);
  const char* colon = text == nullptr ? nullptr : ::strrchr(text, ':');
  if (colon != nullptr) {
    fault.path_part.assign(text, colon);
    fault.how = colon + 1;
  }
  return fault;
}

bool is_below(int descriptor, const std::string& path_part) {
  if (path_part.empty())
    return false;
  char link[64];
  char path[4096];
  ::snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = ::readlink(link, path, sizeof(path) - 1);
  if (length <= 0)
    return false;
  path[length] = '\0';
  return ::strstr(path, path_part.c_str()) != nullptr;
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

// The number in the file; without a file, more than any rank counts.
int count_in(const char* path) {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return INT_MAX;
  char text[16] = {};
  const ssize_t length = ::read(file, text, sizeof(text) - 1);
  ::close(file);
  return length > 0 ? ::atoi(text) : 0;
}

void wait_if_held() {
  static std::atomic<int> count{0};
  const char* path = ::getenv("BRIGADE_TEST_HELD_STEPS");
  if (path == nullptr || ::getenv("RANK") == nullptr)
    return;
  const int mine = ++count;
  while (mine > count_in(path))
    sleep_seconds(0.01);
}

__attribute__((constructor)) void signal_while_loading() {
  const char* number = ::getenv("BRIGADE_TEST_SIGNAL_WHILE_LOADING");
  char program[4096] = {};
  if (number != nullptr &&
      ::readlink("/proc/self/exe", program, sizeof(program) - 1) > 0 &&
      ::strstr(program, "/brigade-torch") != nullptr)
    ::kill(::getpid(), ::atoi(number));
}

FILE* open_stream(const char* name, const char* path, const char* mode) {
  if (::strcmp(path, "/proc/self/statm") == 0) {
    fail_if_due();
    wait_if_held();
  }
  using Open = FILE* (*)(const char*, const char*);
  return reinterpret_cast<Open>(::dlsym(RTLD_NEXT, name))(path, mode);
}

}  // namespace

extern "C" {

ssize_t write(int descriptor, const void* data, size_t size) {
  static const DiskFault held = read_disk_fault("BRIGADE_TEST_HELD_DISK");
  static const DiskFault slow = read_disk_fault("BRIGADE_TEST_SLOW_DISK");
  if (is_below(descriptor, held.path_part)) {
    while (::access(held.how.c_str(), F_OK) == 0)
      sleep_seconds(0.01);
  }
  const ssize_t count = ::syscall(SYS_write, descriptor, data, size);
  if (count > 0 && is_below(descriptor, slow.path_part))
    sleep_seconds(static_cast<double>(count) / ::atof(slow.how.c_str()));
  return count;
}

FILE* fopen(const char* path, const char* mode) {
  return open_stream("fopen", path, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  return open_stream("fopen64", path, mode);
}

}  // extern "C"
