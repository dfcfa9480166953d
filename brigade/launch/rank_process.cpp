#include "brigade/launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
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

void close_all_but(int kept, int kept_too) {
  const auto low = static_cast<unsigned>(std::min(kept, kept_too));
  const auto high = static_cast<unsigned>(std::max(kept, kept_too));
  if (low > 0)
    ::close_range(0, low - 1, 0);
  if (high > low + 1)
    ::close_range(low + 1, high - 1, 0);
  ::close_range(high + 1, ~0U, 0);
}

struct GuardPlan {
  std::vector<std::string> files;
  std::string folder;
  std::string last_words;
  int error_descriptor = 2;
};

// Not where that would wait for a reader: the ranks come first.
void write_at_once(int descriptor, const std::string& text) {
  pollfd writable{.fd = descriptor, .events = POLLOUT, .revents = 0};
  if (::poll(&writable, 1, 0) <= 0)
    return;
  [[maybe_unused]] const ssize_t written =
      ::write(descriptor, text.data(), text.size());
}

[[noreturn]] void run_guard(int supervisor_is_alive, const GuardPlan& plan) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_NAME, "brigade-guard");
  close_all_but(supervisor_is_alive, plan.error_descriptor);
  // Signals stay blocked: those sent to the group are meant for the ranks.
  char byte = 0;
  while (::read(supervisor_is_alive, &byte, 1) < 0 && errno == EINTR) {
  }
  write_at_once(plan.error_descriptor, plan.last_words);
  for (const std::string& file : plan.files)
    ::unlink(file.c_str());
  ::rmdir(plan.folder.c_str());
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
  std::string_view memory_score;  // for /proc/self/oom_score_adj
};

// The supervisor's own and a tenth of the memory on top, as
// /proc/PID/oom_score_adj has it.
std::string memory_score_of_ranks() {
  constexpr int kMore = 100;
  constexpr int kMost = 1000;
  int score = 0;
  std::ifstream("/proc/self/oom_score_adj") >> score;
  return std::to_string(std::min(score + kMore, kMost));
}

void set_memory_score(std::string_view score) {
  const Descriptor file(
      ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  [[maybe_unused]] const ssize_t written =
      ::write(file.get(), score.data(), score.size());
}

[[noreturn]] void run_child(
    const ChildPlan& plan,
    const SignalsBlocked& signals) {
  ::setpgid(0, plan.group);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have died before the line above.
  if (::getppid() != plan.supervisor)
    ::_exit(127);
  set_memory_score(plan.memory_score);
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

}  // namespace

std::vector<char*> as_pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& string : strings)
    pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw_errno("pipe2()");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

ProcessGuard::ProcessGuard(
    const std::vector<std::filesystem::path>& files,
    const std::filesystem::path& folder,
    int error_descriptor) {
  Pipe alive = make_pipe();
  GuardPlan plan{
      .folder = folder.string(),
      .last_words = fmt::format(
          "error: the supervisor of the ranks (process {}) was killed, "
          "perhaps by the kernel because memory ran out. Its ranks are "
          "ended\n",
          ::getpid()),
      .error_descriptor = error_descriptor};
  for (const auto& file : files)
    plan.files.push_back(file.string());
  const SignalsBlocked signals;
  pid_ = ::fork();
  if (pid_ < 0)
    throw_errno("fork()");
  if (pid_ == 0)
    run_guard(alive.read_end.get(), plan);
  // Both do it, so that the group exists whichever runs first.
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
  const std::string memory_score = memory_score_of_ranks();
  const ChildPlan plan{
      .executable = options.executable.c_str(),
      .arguments = arguments.data(),
      .environment = environment.data(),
      .input = input.get(),
      .output = output.write_end.get(),
      .error = error.write_end.get(),
      .start_failure = start_failure.write_end.get(),
      .supervisor = ::getpid(),
      .group = guard.group(),
      .memory_score = memory_score};
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

bool handles_signal(pid_t process, int number) {
  std::ifstream status(fmt::format("/proc/{}/status", process));
  std::string line;
  uint64_t handled = 0;
  bool is_known = false;
  while (std::getline(status, line)) {
    // "SigCgt:\t0000000000000200": bit N - 1 is signal N.
    if (!line.starts_with("SigCgt:") && !line.starts_with("SigIgn:"))
      continue;
    handled |= std::strtoull(line.c_str() + 7, nullptr, 16);
    is_known = true;
  }
  return !is_known || ((handled >> (number - 1)) & 1) != 0;
}

}  // namespace brigade
