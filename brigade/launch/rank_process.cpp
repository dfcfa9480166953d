#include "brigade/launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "brigade/base/error.h"

namespace brigade {

namespace {

[[noreturn]] void throw_errno(const char* what) {
  throw StorageError(
      fmt::format("[launch] {} failed: {}", what, std::strerror(errno)));
}

// No handler of the parent may run in a child: it would write into the
// parent's pipe. Blocks all signals while it lives.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { restore(); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  void restore() const { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// Handlers become defaults; what is ignored (nohup) stays ignored.
void reset_signal_handlers() {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    const bool is_handled = ::sigaction(number, nullptr, &action) == 0 &&
                            action.sa_handler != SIG_IGN &&
                            action.sa_handler != SIG_DFL;
    if (is_handled)
      ::signal(number, SIG_DFL);
  }
}

void close_all_but(int kept) {
  const auto keep = static_cast<unsigned>(kept);
  if (keep > 0)
    ::close_range(0, keep - 1, 0);
  ::close_range(keep + 1, ~0U, 0);
}

struct GuardFiles {
  std::vector<std::string> files;
  std::string folder;
};

[[noreturn]] void run_guard(int supervisor_is_alive, const GuardFiles& files) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_NAME, "brigade-guard");
  close_all_but(supervisor_is_alive);
  // Signals stay blocked: those sent to the group are meant for the ranks.
  char byte = 0;
  while (::read(supervisor_is_alive, &byte, 1) < 0 && errno == EINTR) {
  }
  for (const std::string& file : files.files)
    ::unlink(file.c_str());
  ::rmdir(files.folder.c_str());
  ::kill(0, SIGKILL);
  ::_exit(0);
}

struct ChildPlan {
  const char* executable;
  char* const* arguments;
  char* const* environment;
  int input;  // -1: inherited
  int output;
  int error;
  int start_failure;  // where errno goes if exec fails
  pid_t supervisor;
  pid_t group;
};

[[noreturn]] void run_child(
    const ChildPlan& plan,
    const SignalsBlocked& signals) {
  ::setpgid(0, plan.group);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have died before the line above.
  if (::getppid() != plan.supervisor)
    ::_exit(127);
  reset_signal_handlers();
  signals.restore();
  if (plan.input >= 0)
    ::dup2(plan.input, STDIN_FILENO);
  ::dup2(plan.output, STDOUT_FILENO);
  ::dup2(plan.error, STDERR_FILENO);
  ::execvpe(plan.executable, plan.arguments, plan.environment);
  const int error = errno;
  // The pipe's reader waits for this or for exec's close.
  [[maybe_unused]] const ssize_t written =
      ::write(plan.start_failure, &error, sizeof(error));
  ::_exit(127);
}

std::vector<char*> as_pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& string : strings)
    pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

int Descriptor::release() {
  return std::exchange(descriptor_, -1);
}

void Descriptor::close() {
  if (descriptor_ >= 0)
    ::close(std::exchange(descriptor_, -1));
}

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw_errno("pipe2()");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

ProcessGuard::ProcessGuard(
    const std::vector<std::filesystem::path>& files,
    const std::filesystem::path& folder) {
  Pipe alive = make_pipe();
  GuardFiles to_remove{.files = {}, .folder = folder.string()};
  for (const auto& file : files)
    to_remove.files.push_back(file.string());
  const SignalsBlocked signals;
  pid_ = ::fork();
  if (pid_ < 0)
    throw_errno("fork()");
  if (pid_ == 0)
    run_guard(alive.read_end.get(), to_remove);
  // Both do it, so that the group exists whoever runs first.
  ::setpgid(pid_, pid_);
  alive_ = std::move(alive.write_end);
}

ProcessGuard::~ProcessGuard() {
  kill_group();
}

void ProcessGuard::kill_group() {
  if (pid_ < 0)
    return;
  ::kill(-pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

RankProcess start_rank(
    const ProcessOptions& options,
    const ProcessGuard& guard) {
  Pipe output = make_pipe();
  Pipe error = make_pipe();
  Pipe start_failure = make_pipe();
  Descriptor input;
  if (!options.inherits_input)
    input = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (int descriptor : {output.read_end.get(), error.read_end.get()})
    ::fcntl(descriptor, F_SETFL, O_NONBLOCK);

  const std::vector<char*> arguments = as_pointers(options.command);
  const std::vector<char*> environment = as_pointers(options.environment);
  const ChildPlan plan{
      .executable = options.executable.c_str(),
      .arguments = arguments.data(),
      .environment = environment.data(),
      .input = input.get(),
      .output = output.write_end.get(),
      .error = error.write_end.get(),
      .start_failure = start_failure.write_end.get(),
      .supervisor = ::getpid(),
      .group = guard.group()};
  RankProcess process;
  {
    const SignalsBlocked signals;
    process.pid = ::fork();
    if (process.pid == 0)
      run_child(plan, signals);
  }
  if (process.pid < 0)
    throw_errno("fork()");
  ::setpgid(process.pid, guard.group());

  start_failure.write_end.close();
  int failure = 0;
  ssize_t count = 0;
  do {
    count = ::read(start_failure.read_end.get(), &failure, sizeof(failure));
  } while (count < 0 && errno == EINTR);
  if (count > 0) {
    while (::waitpid(process.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    throw ConfigError(fmt::format(
        "[launch] cannot start '{}': {}",
        options.executable,
        std::strerror(failure)));
  }
  process.output = std::move(output.read_end);
  process.error = std::move(error.read_end);
  return process;
}

}  // namespace brigade
