// brigade tune-buckets: its options.
#include <memory>

#include "cli/commands.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

void add_tune_buckets(CLI::App& app) {
  auto arguments = std::make_shared<TuneBucketsArguments>();
  CLI::App* command = app.add_subcommand(
      "tune-buckets",
      "Find the bucket size that leaves the least communication exposed");
  add_config_arguments(*command, arguments->config);
  command
      ->add_option(
          "--steps",
          arguments->tuner.steps,
          "Steps to measure of each size that is run")
      ->type_name("N")
      ->check(whole_number(1, 100000))
      ->capture_default_str();
  CLI::Option* out = command->add_option(
      "--out",
      arguments->out,
      "Where to write the config with the best size (default: NAME.tuned.json "
      "beside it, which must not exist)");
  out->type_name("FILE");
  command
      ->add_flag(
          "--write",
          arguments->writes_in_place,
          "Write it into the config file itself (default: off)")
      ->excludes(out);
  command->footer(
      "Example: brigade tune-buckets --config examples/quickstart.json --nproc "
      "2\n\nMeasures what an all-reduce costs on these ranks and when backward "
      "has each\ngradient ready, predicts the exposed time of every size, runs "
      "the best three and\nthe config's own. Takes a few minutes at most for a "
      "model whose steps take seconds.");
  command->callback([arguments] { tune_buckets(*arguments); });
}

}  // namespace brigade::cli
