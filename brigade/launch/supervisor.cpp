#include "brigade/launch/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <memory>
#include <tuple>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/launch/line_merger.h"
#include "brigade/launch/rank_environment.h"
#include "brigade/launch/rank_process.h"
#include "brigade/launch/rank_report.h"

namespace brigade {
namespace {

using Clock = std::chrono::steady_clock;

// A rank that lost a peer may end before the peer's own end is seen: how long
// to wait for a better cause before the rest is ended.
constexpr std::chrono::milliseconds kCauseWait{300};
// How long a rank whose step is late has to end itself, and from then on to
// the SIGKILL of all.
constexpr std::chrono::milliseconds kStallGrace{500};
constexpr std::chrono::milliseconds kStallKillAfter{1000};
// How often it looks whether the others have written their recordings.
constexpr std::chrono::milliseconds kRecordingLook{10};
constexpr int kPatience = 3;  // interrupts until the ranks are killed
// How long output of a run that failed waits for somebody to read it.
constexpr std::chrono::milliseconds kReaderWait{1000};

class Supervisor {
 public:
  Supervisor(const SupervisorOptions& options, SignalPipe& signals)
      : options_(options),
        signals_(signals),
        guard_(
            folder_.files(options.nproc),
            folder_.path(),
            options.error_descriptor) {}

  // Ranks are left only where one could not be started.
  ~Supervisor() {
    guard_.kill_group();
    for (const Rank& rank : ranks_) {
      while (rank.is_live && ::waitpid(rank.process.pid, nullptr, 0) < 0 &&
             errno == EINTR) {
      }
    }
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  SupervisorResult run() {
    for (int rank = 0; rank < options_.nproc; ++rank)
      start(rank);
    while (live_ > 0) {
      wait_for_event();
      for (int number : signals_.take()) {
        if (number != SIGCHLD)
          pass_on(number);
      }
      reap();
      if (phase_ == Phase::kRunning || phase_ == Phase::kWaiting)
        fail_stalled_ranks();
      end_others_if_due();
    }
    // What the ranks started and left behind, and with it the last writers of
    // their pipes.
    guard_.kill_group();
    const uint64_t dropped = write_the_rest();
    SupervisorResult ended = result();
    ended.dropped_bytes = dropped;
    ended.output_failure = merger_.failure_of(options_.output_descriptor);
    return ended;
  }

 private:
  struct Rank {
    RankProcess process;
    std::unique_ptr<RankReport> report;
    bool is_live = true;
    int status = 0;          // waitpid's
    int end_order = 0;       // 1: the first to end
    bool was_ended = false;  // after we had sent SIGTERM or SIGKILL
    bool is_stalled = false;
    int64_t recordings_before = 0;  // it was asked for one
  };

  bool has_failed(const Rank& rank) const {
    return !rank.is_live && rank.status != 0;
  }

  void start(int rank) {
    const bool is_first = rank == 0;
    ranks_.push_back(
        {.process = start_rank(
             {.executable = options_.executable.empty() ? options_.command[0]
                                                        : options_.executable,
              .command = options_.command,
              .environment = rank_environment(options_, folder_, rank),
              // The ranks are not in the terminal's group and could not read.
              .inherits_input = is_first && ::isatty(STDIN_FILENO) == 0},
             guard_),
         .report = std::make_unique<RankReport>(folder_.report_file(rank))});
    ++live_;
    const bool has_prefix =
        options_.prefixes_lines && options_.unprefixed_rank != rank;
    const std::string prefix =
        has_prefix ? fmt::format("[rank {}] ", rank) : "";
    const RankProcess& process = ranks_.back().process;
    for (const auto& [source, target] :
         {std::pair{process.output.get(), options_.output_descriptor},
          std::pair{process.error.get(), options_.error_descriptor}}) {
      inputs_.push_back(source);
      merger_.add_stream(
          {.descriptor = target,
           .prefix = prefix,
           .is_terminal = ::isatty(target) == 1});
    }
  }

  void wait_for_event() {
    std::vector<pollfd> descriptors = {
        {.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
    const bool reads = !merger_.is_full();
    for (int input : inputs_)  // poll skips those below 0
      descriptors.push_back(
          {.fd = reads ? input : -1, .events = POLLIN, .revents = 0});
    for (int output : merger_.unwritten_descriptors())
      descriptors.push_back({.fd = output, .events = POLLOUT, .revents = 0});
    int timeout_ms = -1;
    Clock::time_point deadline = next_deadline_;
    if (phase_ == Phase::kRunning || phase_ == Phase::kWaiting)
      deadline = std::min(deadline, next_stall());
    if (phase_ == Phase::kTerminating)
      deadline = std::min(deadline, Clock::now() + kRecordingLook);
    if (deadline != Clock::time_point::max()) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      timeout_ms = static_cast<int>(std::max<int64_t>(0, left.count()));
    }
    const int ready =
        ::poll(descriptors.data(), descriptors.size(), timeout_ms);
    if (ready <= 0)
      return;
    merger_.write_some();
    for (size_t i = 0; i < inputs_.size(); ++i) {
      // Once: a rank that never stops printing must not keep signals and other
      // ranks from being looked at.
      if (descriptors[i + 1].revents != 0)
        read_some(i);
    }
  }

  // Reads one buffer while there is room for it; -1 takes the input's place at
  // its end. False: no more can be read now.
  bool read_some(size_t index) {
    if (inputs_[index] < 0 || merger_.is_full())
      return false;
    char bytes[65536];
    const ssize_t count = ::read(inputs_[index], bytes, sizeof(bytes));
    if (count > 0)
      merger_.feed(index, {bytes, static_cast<size_t>(count)});
    else if (count == 0)
      inputs_[index] = -1;
    return count > 0 || (count < 0 && errno == EINTR);
  }

  // After the end of all ranks. The output of a run that went well waits for
  // its reader, as any program's; one that failed or is asked to end waits as
  // long as somebody reads. Returns the bytes that nobody took.
  uint64_t write_the_rest() {
    bool is_impatient = result().exit_code != 0;
    size_t finished = 0;
    auto last_progress = Clock::now();
    while (true) {
      // Inputs are read in order, each to its end.
      while (finished < inputs_.size() && !merger_.is_full()) {
        while (read_some(finished)) {
        }
        if (!merger_.is_full())
          merger_.finish(finished++);
      }
      if (merger_.write_some() > 0)
        last_progress = Clock::now();
      const auto outputs = merger_.unwritten_descriptors();
      if (finished == inputs_.size() && outputs.empty())
        return 0;
      for (int number : signals_.take())
        is_impatient = note_end(number) || is_impatient;
      if (is_impatient && Clock::now() - last_progress > kReaderWait)
        return merger_.drop() + unread_bytes();
      std::vector<pollfd> descriptors = {
          {.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
      for (int output : outputs)
        descriptors.push_back({.fd = output, .events = POLLOUT, .revents = 0});
      const auto wait_ms = is_impatient ? kReaderWait.count() / 10 : -1;
      ::poll(descriptors.data(), descriptors.size(), static_cast<int>(wait_ms));
    }
  }

  // What stands in the ranks' pipes.
  uint64_t unread_bytes() const {
    uint64_t total = 0;
    for (int input : inputs_) {
      int count = 0;
      if (input >= 0 && ::ioctl(input, FIONREAD, &count) == 0)
        total += static_cast<uint64_t>(count);
    }
    return total;
  }

  // False where the signal does not ask for the end.
  bool note_end(int number) {
    if (!asks_for_end(number))
      return false;
    was_asked_to_end_ = true;
    end_signal_ = number;
    ++end_signals_;
    return true;
  }

  void pass_on(int number) {
    // A signal that asks for the end goes to all that the ranks started, as
    // from a terminal; the others are for the ranks, since they kill what does
    // not expect them.
    if (note_end(number)) {
      signal_all(end_signals_ >= kPatience ? SIGKILL : number);
      return;
    }
    // A rank that still starts has no handler: a request would end it.
    const bool is_request = number == SIGUSR1 || number == SIGUSR2 ||
                            (number == SIGQUIT && options_.records_on_quit);
    for (const Rank& rank : ranks_) {
      if (rank.is_live &&
          (!is_request || handles_signal(rank.process.pid, number)))
        ::kill(rank.process.pid, number);
    }
  }

  // The guard blocks everything but SIGKILL, which ends it with the others:
  // then the ranks' processes are signalled one by one, and the rest of the
  // group at the very end.
  void signal_all(int number) {
    if (number != SIGKILL) {
      ::kill(-guard_.group(), number);
      return;
    }
    for (const Rank& rank : ranks_) {
      if (rank.is_live)
        ::kill(rank.process.pid, SIGKILL);
    }
  }

  void reap() {
    for (Rank& rank : ranks_) {
      if (!rank.is_live)
        continue;
      int status = 0;
      if (::waitpid(rank.process.pid, &status, WNOHANG) != rank.process.pid)
        continue;
      rank.is_live = false;
      rank.status = status;
      rank.end_order = ++ended_;
      rank.was_ended = phase_ != Phase::kRunning && phase_ != Phase::kWaiting;
      --live_;
      if (ended_by_own_signal(rank)) {
        end_signal_ = WEXITSTATUS(status) - 128;
        was_asked_to_end_ = true;
      }
      if (status != 0 && phase_ == Phase::kRunning && !follows_signal(rank))
        on_first_failure(status);
    }
  }

  // When the first live rank will be past its step's deadline for too long.
  Clock::time_point next_stall() const {
    auto first = Clock::time_point::max();
    for (const Rank& rank : ranks_)
      first = std::min(first, stall_of(rank));
    return first;
  }

  static Clock::time_point stall_of(const Rank& rank) {
    const int64_t deadline_ns = rank.report->deadline_ns();
    if (!rank.is_live || rank.is_stalled || deadline_ns <= 0)
      return Clock::time_point::max();
    return Clock::time_point(std::chrono::nanoseconds(deadline_ns)) +
           kStallGrace;
  }

  void fail_stalled_ranks() {
    const auto now = Clock::now();
    bool has_stalled = false;
    for (Rank& rank : ranks_) {
      if (stall_of(rank) > now)
        continue;
      has_stalled = rank.is_stalled = true;
      rank.report->set_failure(
          "StallError: the step is past its deadline and the process does not "
          "run: it was stopped, or is blocked in the kernel");
    }
    if (!has_stalled)
      return;
    phase_ = Phase::kWaiting;
    kill_deadline_ = now + kStallKillAfter;
    next_deadline_ = now + kCauseWait;
    ask_for_recordings();
    // One that was stopped runs again, for as long as that takes.
    for (const Rank& rank : ranks_) {
      if (rank.is_live && rank.is_stalled)
        ::kill(rank.process.pid, SIGCONT);
    }
  }

  void ask_for_recordings() {
    for (Rank& rank : ranks_) {
      rank.report->set_run_failed();
      rank.recordings_before = rank.report->recordings();
      if (rank.is_live && rank.report->handles_quit())
        ::kill(rank.process.pid, SIGQUIT);
    }
  }

  // Nothing is left to wait for: what a rank that has lost a peer would still
  // do, it does in vain. False for programs that write no recordings.
  bool all_have_recorded() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
      return !rank.is_live ||
             rank.report->recordings() > rank.recordings_before;
    });
  }

  // The end that the user asked for is no failure of the run: the other ranks
  // get the time they need (to save, for instance).
  bool follows_signal(const Rank& rank) const {
    if (end_signal_ == 0)
      return false;
    const int number = WIFSIGNALED(rank.status)
                           ? WTERMSIG(rank.status)
                           : WEXITSTATUS(rank.status) - 128;
    return number == end_signal_ || ended_on_request(rank);
  }

  // Whichever request it followed, of several. Only Brigade's own programs
  // agree on such a code: others may mean anything by it.
  static bool ended_on_request(const Rank& rank) {
    return rank.report->handles_quit() && rank.report->failed_ns() == 0 &&
           WIFEXITED(rank.status) &&
           asks_for_end(WEXITSTATUS(rank.status) - 128);
  }

  // What asks for the end came to this rank alone. After a failure the signal
  // was the supervisor's.
  bool ended_by_own_signal(const Rank& rank) const {
    return end_signal_ == 0 && !rank.was_ended && ended_on_request(rank);
  }

  static bool is_comm_failure(int status) {
    return WIFEXITED(status) &&
           WEXITSTATUS(status) == static_cast<int>(ExitCode::kComm);
  }

  void on_first_failure(int status) {
    ask_for_recordings();
    kill_deadline_ = Clock::now() + options_.kill_after;
    phase_ = Phase::kWaiting;
    if (!is_comm_failure(status)) {
      next_deadline_ = Clock::now();
      return;
    }
    // Whom it waited for may be past the same deadline, and not run.
    next_deadline_ = Clock::now() + kCauseWait;
    if (const auto stall = next_stall(); stall < Clock::now() + kStallGrace)
      next_deadline_ = std::max(next_deadline_, stall + kCauseWait);
  }

  void end_others_if_due() {
    const bool cause_is_known =
        std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
          return has_failed(rank) && !is_comm_failure(rank.status);
        });
    const bool is_due = Clock::now() >= next_deadline_;
    if (phase_ == Phase::kWaiting && (is_due || cause_is_known)) {
      signal_all(SIGTERM);
      phase_ = Phase::kTerminating;
      next_deadline_ = kill_deadline_;
    } else if (
        phase_ == Phase::kTerminating && (is_due || all_have_recorded())) {
      signal_all(SIGKILL);
      phase_ = Phase::kKilled;
      next_deadline_ = Clock::time_point::max();
    }
  }

  RankFailure failure_of(int index) const {
    const Rank& rank = ranks_[static_cast<size_t>(index)];
    const bool is_killed = WIFSIGNALED(rank.status);
    return {
        .rank = index,
        .step = rank.report->step(),
        .signal = is_killed && !rank.is_stalled ? WTERMSIG(rank.status) : 0,
        .exit_code = rank.is_stalled ? static_cast<int>(ExitCode::kStalled)
                     : is_killed     ? 128 + WTERMSIG(rank.status)
                                     : WEXITSTATUS(rank.status),
        .reason = rank.report->failure(),
        .note = static_cast<size_t>(index) < options_.rank_notes.size()
                    ? options_.rank_notes[static_cast<size_t>(index)]
                    : ""};
  }

  SupervisorResult result() const {
    std::vector<int> failed;
    for (int i = 0; i < options_.nproc; ++i) {
      const Rank& rank = ranks_[static_cast<size_t>(i)];
      // SIGTERM's and SIGKILL's victims say nothing about the cause.
      const bool is_ours = rank.was_ended && rank.report->failed_ns() == 0;
      if (has_failed(rank) && !is_ours)
        failed.push_back(i);
    }
    // The cause first: who lost a peer is no cause if another one failed
    // otherwise; then who told first, then who ended first.
    const auto key = [&](int i) {
      const Rank& rank = ranks_[static_cast<size_t>(i)];
      const int64_t told_ns = rank.report->failed_ns();
      return std::tuple(
          !rank.is_stalled,
          is_comm_failure(rank.status),
          rank.was_ended,
          told_ns == 0 ? INT64_MAX : told_ns,
          rank.end_order);
    };
    std::ranges::sort(failed, {}, key);
    SupervisorResult result;
    result.was_asked_to_end = was_asked_to_end_;
    for (const Rank& rank : ranks_) {
      const int64_t first = rank.report->first_step();
      if (first >= 0 && (result.first_step < 0 || first < result.first_step))
        result.first_step = first;
      result.last_step = std::max(result.last_step, rank.report->step());
    }
    for (int i : failed)
      result.failures.push_back(failure_of(i));
    if (!result.failures.empty())
      result.exit_code = result.failures.front().exit_code;
    return result;
  }

  //   kRunning --first failure--> kWaiting --cause known or kCauseWait-->
  //   kTerminating (SIGTERM sent) --all have recorded, or kill_after-->
  //   kKilled (SIGKILL sent)
  enum class Phase { kRunning, kWaiting, kTerminating, kKilled };

  const SupervisorOptions& options_;
  RankFolder folder_;
  SignalPipe& signals_;
  ProcessGuard guard_;
  std::deque<Rank> ranks_;
  std::vector<int> inputs_;  // output and error of each rank; -1: at its end
  LineMerger merger_;
  Phase phase_ = Phase::kRunning;
  int live_ = 0;
  int ended_ = 0;
  // The latest that asked the supervisor for the end, or else the first that a
  // rank ended by; 0: none.
  int end_signal_ = 0;
  int end_signals_ = 0;  // how often the supervisor was asked
  bool was_asked_to_end_ = false;
  Clock::time_point next_deadline_ = Clock::time_point::max();
  Clock::time_point kill_deadline_ = Clock::time_point::max();
};

}  // namespace

SignalPipe supervisor_signals() {
  return SignalPipe(
      {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT});
}

SupervisorResult supervise(const SupervisorOptions& options) {
  SignalPipe signals = supervisor_signals();
  return supervise(options, signals);
}

SupervisorResult supervise(
    const SupervisorOptions& options,
    SignalPipe& signals) {
  BRIGADE_ASSERT(
      options.nproc >= 1 && !options.command.empty(),
      "{} ranks of {} words",
      options.nproc,
      options.command.size());
  return Supervisor(options, signals).run();
}

}  // namespace brigade
