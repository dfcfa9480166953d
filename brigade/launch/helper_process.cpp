#include "brigade/launch/helper_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "brigade/launch/rank_process.h"

namespace brigade {

HelperProcess::HelperProcess(const std::vector<std::string>& words) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0)
    throw std::system_error(errno, std::system_category());
  output_ = Descriptor(pipe[0]);
  const Descriptor input(pipe[1]);
  // No pipe: it is read at the end, and until then nobody empties it.
  errors_ = Descriptor(::memfd_create("helper_errors", MFD_CLOEXEC));
  const int failure = errors_.is_open() ? start(input.get(), words) : errno;
  if (failure != 0)
    throw std::system_error(failure, std::system_category());
}

HelperProcess::~HelperProcess() {
  if (has_ended())
    return;
  ::kill(process_, SIGKILL);
  wait();
}

size_t HelperProcess::read(char* out, size_t size) {
  while (!has_ended()) {
    const ssize_t count = ::read(output_.get(), out, size);
    if (count > 0)
      return static_cast<size_t>(count);
    if (count == 0)
      wait();
    else if (errno != EINTR)
      throw std::system_error(errno, std::system_category());
  }
  return 0;
}

std::string HelperProcess::errors() const {
  std::string text(4096, '\0');
  const ssize_t count = ::pread(errors_.get(), text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return text;
}

// Returns 0 or the error's number.
int HelperProcess::start(int output, const std::vector<std::string>& words) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(
      &files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, errors_.get(), STDERR_FILENO);
  // This program may ignore or block what ends a helper that nobody reads.
  sigset_t none;
  ::sigemptyset(&none);
  sigset_t restored;
  ::sigemptyset(&restored);
  ::sigaddset(&restored, SIGPIPE);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &restored);
  posix_spawnattr_setflags(
      &attributes,
      POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const std::vector<char*> arguments = as_pointers(words);
  pid_t process = -1;
  const int failure = ::posix_spawnp(
      &process, arguments[0], &files, &attributes, arguments.data(), environ);
  if (failure == 0)
    process_ = process;
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return failure;
}

void HelperProcess::wait() {
  while (::waitpid(process_, &status_, 0) < 0 && errno == EINTR) {
  }
  process_ = -1;
}

}  // namespace brigade
