#include "every_command.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <fstream>
#include <regex>

namespace brigade {

namespace fs = std::filesystem;

fs::path EveryCommand::data_;

void EveryCommand::SetUpTestSuite() {
  std::string pattern = fs::temp_directory_path() / "brigade_every_XXXXXX";
  data_ = ::mkdtemp(pattern.data());
  std::ofstream(data_ / "text.txt") << std::string(3000, 'a') << "\n";
  std::ofstream(data_ / "task.jsonl")
      << R"({"context": "a", "choices": ["b", "c"], "gold": 0})"
      << "\n";
  std::ofstream(data_ / "t.jinja")
      << "{% for m in messages %}({{ m.role }}){{ m.content }}{% endfor %}";
  std::ofstream(data_ / "run.json") << fmt::format(
      R"({{
      "model": {{"config": {{
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 64}}}},
      "training": {{"seq_length": 16, "total_train_steps": 2}},
      "logging": {{"run_dir": "{0}/run"}},
      "dataset": {{"name": "{0}/tokens"}}}})",
      data_.string());
}

void EveryCommand::TearDownTestSuite() {
  fs::remove_all(data_);
}

void EveryCommand::SetUp() {
  if (fs::exists(data_ / "model"))
    return;
  ASSERT_EQ(run("prepare -i {D}/text.txt -o {D}/tokens -t bytes"), 0) << err();
  ASSERT_EQ(run("train --config {D}/run.json"), 0) << err();
  ASSERT_EQ(run("export --run {D}/run --out {D}/model"), 0) << err();
}

int EveryCommand::run(const std::string& arguments, const std::string& tail) {
  fs::remove(folder_ / "out");
  fs::remove(folder_ / "err");
  std::string line = arguments + " " + tail;
  for (const auto& [name, path] :
       {std::pair{"{D}", data_}, std::pair{"{T}", folder_}}) {
    for (size_t at = line.find(name); at != std::string::npos;
         at = line.find(name))
      line.replace(at, 3, path.string());
  }
  ::setenv("B", kProgram, 1);
  ::setenv("OMP_NUM_THREADS", "1", 1);
  return exit_code(start_program("bash", {"-c", "\"$B\" " + line}));
}

std::vector<std::string> EveryCommand::commands_of(const std::string& name) {
  EXPECT_EQ(run(name + " --help"), 0);
  const std::string help = out();
  std::vector<std::string> names;
  const size_t begin = help.find("Subcommands:");
  const std::regex line("\n  ([a-z-]+) ");
  for (auto found = std::sregex_iterator(
           help.begin() + static_cast<ptrdiff_t>(std::min(begin, help.size())),
           help.end(),
           line);
       found != std::sregex_iterator();
       ++found)
    names.push_back((name.empty() ? "" : name + " ") + (*found)[1].str());
  return names;
}

}  // namespace brigade
