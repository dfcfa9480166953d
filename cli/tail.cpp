// brigade tail RUN: the last steps of a run, and those that follow.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "brigade/metrics/metrics.h"
#include "brigade/report/run_record.h"
#include "cli/commands.h"
#include "cli/named_run.h"
#include "cli/options.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;

struct TailArguments {
  fs::path run;
  size_t steps = 10;
  bool follows = false;
};

void print_step(const nlohmann::json& step, int64_t total_steps) {
  const auto number = [&](const char* key) { return step_value(step, key); };
  std::string line = fmt::format(
      "step {:>6}{}  loss {:>8.4f}  lr {:.3e}  norm {:>8.4f}  {:>8} tokens/s  "
      "MFU {:>5.1f} %  {:>6.1f} ms",
      step_number(step),
      total_steps > 0 ? fmt::format("/{}", total_steps) : "",
      number("loss"),
      number("lr"),
      number("grad_norm"),
      readable(number("tokens_per_second")),
      number("mfu"),
      number("step_ms"));
  if (step.contains("eval_loss"))
    line += fmt::format("  eval {:.4f}", number("eval_loss"));
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void tail(const TailArguments& arguments) {
  const fs::path folder = find_run(arguments.run);
  RunRecord run = read_run(folder);
  size_t shown = run.steps.size() > arguments.steps
                     ? run.steps.size() - arguments.steps
                     : 0;
  size_t told = 0;  // the events up to an end that was shown
  while (true) {
    // A run that was continued from an earlier checkpoint has fewer.
    shown = std::min(shown, run.steps.size());
    const int64_t total = last_step_of(run);
    for (; shown < run.steps.size(); ++shown)
      print_step(run.steps[shown], total);
    const int64_t last = run.steps.empty() ? 0 : step_number(run.steps.back());
    if (!arguments.follows)
      return;
    const std::string end = end_of(run);
    // A supervisor may start it again.
    if ((end == "stopped" || end == "failed") && run.events.size() != told) {
      fmt::print("the run {} after step {}\n", end, last);
      std::fflush(stdout);
      told = run.events.size();
    }
    if (end == "completed" || (total > 0 && last >= total))
      return;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    run = read_run(folder);
  }
}

}  // namespace

void add_tail(CLI::App& app) {
  auto arguments = std::make_shared<TailArguments>();
  CLI::App* command =
      app.add_subcommand("tail", "Show the last steps of a run");
  add_run_option(
      *command, arguments->run, "run", "A run, or a checkpoint of it");
  command->add_option("-n,--steps", arguments->steps, "How many steps")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_flag(
      "-f,--follow",
      arguments->follows,
      "Go on with the steps that follow, through restarts, until the run's "
      "last; Ctrl-C ends it before");
  command->footer("Example: brigade tail --run runs/run -f");
  command->callback([arguments, command] {
    check_run(*command, arguments->run);
    tail(*arguments);
  });
}

}  // namespace brigade::cli
