// brigade report RUN... -o FILE, and brigade metrics DIR
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/report/metrics_table.h"
#include "brigade/report/report_page.h"
#include "cli/commands.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  std::vector<fs::path> runs;
  fs::path out;
};

void write_report(const ReportArguments& arguments) {
  std::vector<RunRecord> runs;
  for (const fs::path& folder : arguments.runs)
    runs.push_back(read_run(folder));
  const fs::path out = arguments.out.empty()
                           ? arguments.runs.front() / "report.html"
                           : arguments.out;
  write_text_file(out, report_page(runs));
  fmt::print("wrote {}\n", out.string());
}

void write_metrics(const fs::path& folder) {
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
  command
      ->add_option("runs", arguments->runs, "Run folders, the first one leads")
      ->required()
      ->type_name("RUN...");
  command
      ->add_option(
          "-o,--out", arguments->out, "The page (default: RUN/report.html)")
      ->type_name("FILE");
  command->footer("Example: brigade report runs/a runs/b -o compare.html");
  command->callback([arguments] { write_report(*arguments); });
}

void add_metrics(CLI::App& app) {
  auto folder = std::make_shared<fs::path>();
  CLI::App* command = app.add_subcommand(
      "metrics",
      "Summarise all runs of a folder: metrics.csv in each, "
      "global_metrics.csv\nand metrics.html for all");
  command->add_option("folder", *folder, "A folder of run folders, or a run")
      ->required()
      ->type_name("DIR");
  command->footer("Example: brigade metrics runs");
  command->callback([folder] { write_metrics(*folder); });
}

}  // namespace brigade::cli
