// brigade report RUN... -o FILE, and brigade metrics DIR
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/files/output_path.h"
#include "brigade/launch/network.h"
#include "brigade/report/metrics_table.h"
#include "brigade/report/report_page.h"
#include "cli/analyze.h"
#include "cli/commands.h"
#include "cli/live_server.h"
#include "cli/named_run.h"
#include "cli/options.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  std::vector<fs::path> runs;
  fs::path out;
  bool is_live = false;
  std::string address = "127.0.0.1";
  int port = 0;
  bool is_public = false;
};

std::vector<RunRecord> read_all(const std::vector<fs::path>& folders) {
  std::vector<RunRecord> runs;
  for (const fs::path& named : folders) {
    const fs::path folder = find_run(named);
    runs.push_back(read_run(folder));
    runs.back().failure = explain_failure(folder / "flight");
  }
  return runs;
}

void serve(const ReportArguments& arguments) {
  if (!is_loopback_name(arguments.address) && !arguments.is_public)
    throw ConfigError(fmt::format(
        "[report] --address {}: other machines could read the run there; give "
        "--public as well if they shall",
        arguments.address));
  read_all(arguments.runs);  // what is wrong with them is said here
  constexpr int kRefreshMs = 2000;
  serve_live(
      {.address = arguments.address,
       .port = arguments.port,
       .answers_any_host = arguments.is_public,
       .page =
           [&] { return report_page(read_all(arguments.runs), kRefreshMs); },
       .data = [&] { return report_data(read_all(arguments.runs)); },
       .on_listening =
           [](const std::string& url) {
             fmt::print("{} shows the run until Ctrl-C\n", url);
             std::fflush(stdout);
           }});
}

void write_report(const ReportArguments& arguments) {
  if (arguments.is_live)
    return serve(arguments);
  const fs::path out = arguments.out.empty()
                           ? find_run(arguments.runs.front()) / "report.html"
                           : arguments.out;
  // By default it goes into the run, of which reading says what is wrong.
  if (!arguments.out.empty())
    check_writable(out, "<!DOCTYPE html>");
  const std::vector<RunRecord> runs = read_all(arguments.runs);
  write_text_file(out, report_page(runs));
  fmt::print("wrote {}\n", out.string());
}

void write_metrics(const fs::path& named) {
  const fs::path folder = find_run(named);
  std::vector<RunSummary> runs;
  for (const RunRecord& run : read_runs(folder)) {
    runs.push_back(summarize(run));
    write_text_file(run.path / "metrics.csv", to_csv({runs.back()}));
  }
  write_text_file(folder / "global_metrics.csv", to_csv(runs));
  write_text_file(folder / "metrics.html", to_html(runs));
  fmt::print(
      "{}wrote {} and {}\n",
      to_text(runs),
      (folder / "global_metrics.csv").string(),
      (folder / "metrics.html").string());
}

}  // namespace

void add_report(CLI::App& app) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command = app.add_subcommand(
      "report", "Write a page about one or several runs, which opens offline");
  add_run_option(
      *command,
      arguments->runs,
      "runs",
      "Runs, or checkpoints of them; the first one leads");
  CLI::Option* out = command->add_option(
      "-o,--out", arguments->out, "The page (default: RUN/report.html)");
  out->type_name("FILE");
  CLI::Option* live = command->add_flag(
      "--live",
      arguments->is_live,
      "Serve the page to this machine while the run goes on (default: off)");
  live->excludes(out);
  command
      ->add_option(
          "--port", arguments->port, "Where --live listens; 0: a free port")
      ->type_name("N")
      ->check(whole_number(0, 65535))
      ->capture_default_str()
      ->needs(live);
  command
      ->add_option(
          "--address", arguments->address, "On which address --live listens")
      ->type_name("ADDRESS")
      ->capture_default_str()
      ->needs(live);
  command
      ->add_flag(
          "--public",
          arguments->is_public,
          "Allow an --address that other machines reach (default: off)")
      ->needs(live);
  command->footer(
      "Example: brigade report --run runs/a runs/b -o compare.html\n"
      "         brigade report --run runs/a --live --port 8000");
  command->callback([arguments, command] {
    check_run(
        *command,
        arguments->runs.empty() ? fs::path() : arguments->runs.front());
    write_report(*arguments);
  });
}

void add_metrics(CLI::App& app) {
  auto folder = std::make_shared<fs::path>();
  CLI::App* command = app.add_subcommand(
      "metrics",
      "Summarise all runs of a folder: metrics.csv in each, "
      "global_metrics.csv\nand metrics.html for all");
  add_run_option(
      *command,
      *folder,
      "folder",
      "A folder of runs, a run, or a checkpoint of it");
  command->footer("Example: brigade metrics --run runs");
  command->callback([folder, command] {
    check_run(*command, *folder);
    write_metrics(*folder);
  });
}

}  // namespace brigade::cli
