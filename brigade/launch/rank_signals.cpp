#include "brigade/launch/rank_signals.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/base/parse_number.h"

namespace brigade {
namespace {

// A handler has no other way to its object.
std::atomic<bool> handlers_are_set{false};
std::atomic<bool> save_requested{false};
std::atomic<bool> recording_requested{false};
std::atomic<int> first_stop_signal{0};

void mask_save_requests(int how) {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGUSR1);
  ::pthread_sigmask(how, &signals, nullptr);
}

void on_rank_signal(int number) {
  if (number == SIGUSR1) {
    save_requested = true;
    return;
  }
  if (number == SIGQUIT) {
    recording_requested = true;
    return;
  }
  int expected = 0;
  const bool is_first =
      first_stop_signal.compare_exchange_strong(expected, number);
  if (!is_first && number == SIGINT && expected == SIGINT)
    ::_exit(128 + SIGINT);
}

}  // namespace

void hold_save_requests() {
  mask_save_requests(SIG_BLOCK);
}

RankSignals::RankSignals() {
  BRIGADE_ASSERT(!handlers_are_set.exchange(true), "two RankSignals");
  save_requested = false;
  recording_requested = false;
  first_stop_signal = 0;
  for (const int number : {SIGUSR1, SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler == SIG_IGN)
      continue;
    before_[number] = action;
    action = {};
    action.sa_handler = on_rank_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(number, &action, nullptr);
  }
  mask_save_requests(SIG_UNBLOCK);
}

RankSignals::~RankSignals() {
  for (const auto& [number, action] : before_) {
    // A recording that is asked for from here on comes too late, and must not
    // end a rank that is about to say why it failed.
    if (number != SIGQUIT)
      ::sigaction(number, &action, nullptr);
  }
  handlers_are_set = false;
}

bool RankSignals::take_save_request() {
  return save_requested.exchange(false);
}

bool RankSignals::take_recording_request() {
  return recording_requested.exchange(false);
}

int RankSignals::stop_signal() const {
  return first_stop_signal;
}

void end_with_launcher(const LaunchEnvironment& environment) {
  if (environment.launcher != "mpirun" && environment.launcher != "mpiexec")
    return;
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
}

std::optional<KillGrace> kill_grace(
    const LaunchEnvironment& environment,
    const GetEnv& getenv) {
  constexpr const char* kName = "OMPI_MCA_odls_base_sigkill_timeout";
  if (environment.launcher != "mpirun")
    return std::nullopt;
  if (getenv("PRTE_LAUNCHED"))  // Open MPI 5 or later
    return KillGrace{.seconds = 0.5, .can_grow = false};
  const auto text = getenv(kName);
  if (!text)
    return KillGrace{.seconds = 1};
  const auto seconds = parse_number<int>(*text);
  if (!seconds) {
    throw ConfigError(fmt::format(
        "[launch] {}='{}': expected a whole number of seconds", kName, *text));
  }
  return KillGrace{.seconds = static_cast<double>(*seconds)};
}

std::optional<int64_t> job_end_time(const GetEnv& getenv) {
  constexpr const char* kName = "SLURM_JOB_END_TIME";
  const auto text = getenv(kName);
  if (!text)
    return std::nullopt;
  const auto seconds = parse_number<int64_t>(*text);
  if (!seconds) {
    throw ConfigError(fmt::format(
        "[launch] {}='{}': expected seconds of Unix time", kName, *text));
  }
  return seconds;
}

}  // namespace brigade
