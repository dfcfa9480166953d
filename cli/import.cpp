// brigade import --gguf FILE --out DIR
#include <fmt/format.h>

#include <memory>
#include <string>

#include "brigade/files/output_path.h"
#include "brigade/gguf/import_model.h"
#include "cli/commands.h"
#include "cli/rate_bar.h"

namespace brigade::cli {

namespace {

struct ImportArguments {
  std::string gguf;
  std::string out;
};

void import_model(const ImportArguments& arguments) {
  check_can_make(arguments.out);
  RateBar bar;
  const ImportedModel model =
      import_gguf(arguments.gguf, arguments.out, bar.labelled("importing"));
  bar.clear();
  fmt::print(
      "{}: {} parameters of {}, {}\n",
      arguments.out,
      model.parameters,
      model.architecture,
      model.dtype);
  if (!model.has_tokenizer)
    fmt::print("No tokenizer was written: the file holds none.\n");
}

}  // namespace

void add_import(CLI::App& app) {
  auto arguments = std::make_shared<ImportArguments>();
  CLI::App* command = app.add_subcommand(
      "import",
      "Write a GGUF file's model and tokenizer as a Hugging Face folder");
  command->footer("Example: brigade import --gguf model.gguf --out model");
  command
      ->add_option(
          "--gguf",
          arguments->gguf,
          "The file; its tensors are f32, f16, bf16 or q8_0, which becomes "
          "float32")
      ->type_name("FILE")
      ->required();
  command
      ->add_option(
          "--out", arguments->out, "The folder to write; it must not exist")
      ->type_name("DIR")
      ->required();
  command->callback([arguments] { import_model(*arguments); });
}

}  // namespace brigade::cli
