// brigade analyze RUN
#include "cli/analyze.h"

#include <fmt/format.h>

#include <memory>

#include "brigade/base/error.h"
#include "brigade/base/shell_word.h"
#include "brigade/flight/analysis.h"
#include "brigade/flight/recording.h"
#include "brigade/metrics/run_folder.h"
#include "cli/commands.h"
#include "cli/named_run.h"
#include "cli/options.h"

namespace brigade::cli {

namespace fs = std::filesystem;

std::string explain_failure(const fs::path& flight) {
  if (!fs::is_directory(flight))
    return "";
  try {
    const auto recordings = read_flight_recordings(flight);
    const std::string summary = summarize(analyze_flights(recordings));
    if (summary.empty() || !tell_failure(recordings))
      return "";
    return fmt::format(
        "{} (more: brigade analyze --run {})",
        summary,
        shell_path(flight.parent_path().string()));
  } catch (const Error& error) {
    return fmt::format(
        "the ranks' recordings cannot be read: {}", error.what());
  }
}

void add_analyze(CLI::App& app) {
  struct Arguments {
    std::string run;
    bool previous = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "analyze", "Say which rank and which operation a failed run waited for");
  add_run_option(
      *command, arguments->run, "run", "A run, or a checkpoint of it");
  command->add_flag(
      "--previous",
      arguments->previous,
      "The failure before the last start of the run (default: of the last)");
  command->footer(
      "Every rank writes RUN/flight/rank-K.json when it fails, when a step "
      "exceeds\ntraining.step_timeout_seconds, and on SIGQUIT.\n\n"
      "Example: brigade analyze --run runs/quickstart");
  command->callback([arguments, command] {
    check_run(*command, arguments->run);
    const RunFolder run{find_run(arguments->run)};
    const auto recordings = read_flight_recordings(
        arguments->previous ? run.previous_flight() : run.flight());
    fmt::print("{}", describe(analyze_flights(recordings), recordings));
  });
}

}  // namespace brigade::cli
