// brigade tune-rate: its options.
#include <memory>

#include "cli/commands.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

void add_tune_rate(CLI::App& app) {
  auto arguments = std::make_shared<TuneRateArguments>();
  CLI::App* command = app.add_subcommand(
      "tune-rate", "Find the best learning rate of several widths of a model");
  add_config_of_one_rank(*command, arguments->config);
  command
      ->add_option(
          "--widths",
          arguments->widths,
          "Hidden sizes to train the model in, such as 64,128,256")
      ->type_name("N,N")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->required()
      ->check(whole_number(1, 1 << 20));
  command
      ->add_option(
          "--rates",
          arguments->rates,
          "Learning rates to try (default: a quarter, a half, one, two and "
          "four times the config's)")
      ->type_name("X,X")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(number_between(1e-18, 1e18));
  command->add_option("--steps", arguments->steps, "Steps of each training")
      ->type_name("N")
      ->check(whole_number(1, 1000000))
      ->capture_default_str();
  command
      ->add_option(
          "--check-after",
          arguments->checked_steps,
          "Steps after which activations are compared with those before")
      ->type_name("N")
      ->check(whole_number(1, 1000000))
      ->capture_default_str();
  command
      ->add_option(
          "--out",
          arguments->out,
          "Where to write all results; what it holds of this config is not "
          "trained again (default: NAME.rates.json beside the config)")
      ->type_name("FILE");
  command
      ->add_option(
          "--svg", arguments->svg, "Draw both tables as lines into an image")
      ->type_name("FILE");
  command->footer(
      "Example: brigade tune-rate --config examples/quickstart.json --widths "
      "64,128,256\n  training.parametrization=mup "
      "training.mup_base_hidden_size=64\n\nOn one rank. Heads keep their "
      "width; their number and the widths of MLPs and\nexperts are scaled. An "
      "interrupted sweep goes on where it was.");
  command->callback([arguments] { tune_rate(*arguments); });
}

}  // namespace brigade::cli
