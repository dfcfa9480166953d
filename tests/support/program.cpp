#include "program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>

#include "become.h"

namespace brigade::testing {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Gone with its descriptor.
int unnamed_file() {
  std::string pattern = fs::temp_directory_path() / "brigade_output_XXXXXX";
  const int file = ::mkostemp(pattern.data(), O_CLOEXEC);
  ::unlink(pattern.c_str());
  return file;
}

std::string read_all(int file) {
  std::string text(static_cast<size_t>(::lseek(file, 0, SEEK_END)), '\0');
  const ssize_t count = ::pread(file, text.data(), text.size(), 0);
  EXPECT_EQ(count, static_cast<ssize_t>(text.size()));
  return text;
}

}  // namespace

StartedProgram::StartedProgram(
    const std::string& program,
    const Arguments& arguments,
    const std::map<std::string, std::string>& environment)
    : out_(unnamed_file()), err_(unnamed_file()) {
  pid_ = ::fork();
  if (pid_ == 0) {
    // A shell's background jobs ignore SIGINT, which a program would inherit.
    ::signal(SIGINT, SIG_DFL);
    ::signal(SIGQUIT, SIG_DFL);
    ::signal(SIGHUP, SIG_DFL);  // nohup
    for (const auto& [name, value] : environment)
      ::setenv(name.c_str(), value.c_str(), 1);
    ::dup2(out_, STDOUT_FILENO);
    ::dup2(err_, STDERR_FILENO);
    become(program, arguments);
  }
}

StartedProgram::~StartedProgram() {
  if (pid_ > 0)
    wait();
  ::close(out_);
  ::close(err_);
}

ProgramResult StartedProgram::wait() {
  int status = 0;
  struct rusage usage {};
  ::wait4(pid_, &status, 0, &usage);
  pid_ = -1;
  ProgramResult result;
  result.exit_code =
      WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_all(out_);
  result.err = read_all(err_);
  result.peak_bytes = int64_t{usage.ru_maxrss} * 1024;
  return result;
}

std::string StartedProgram::output_so_far() const {
  return read_all(out_);
}

std::string program_path() {
  return BRIGADE_BINARY_DIR "/brigade";
}

ProgramResult run_program(
    const Arguments& arguments,
    const std::map<std::string, std::string>& environment) {
  return StartedProgram(program_path(), arguments, environment).wait();
}

Arguments train_arguments(
    const fs::path& config,
    const fs::path& run_dir,
    const Arguments& more) {
  Arguments all = {
      "train",
      "--config",
      config.string(),
      "logging.run_dir=" + run_dir.string()};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

RunsFolder::RunsFolder() {
  const fs::path memory = "/dev/shm";
  constexpr uintmax_t kRoomBytes = uintmax_t{1} << 30;
  std::error_code absent;
  const auto space = fs::space(memory, absent);
  const bool is_usable = !absent && space.available >= kRoomBytes &&
                         ::access(memory.c_str(), W_OK) == 0;
  std::string pattern =
      (is_usable ? memory : fs::temp_directory_path()) / "brigade_runs_XXXXXX";
  path_ = ::mkdtemp(pattern.data());
}

RunsFolder::~RunsFolder() {
  fs::remove_all(path_);
}

std::string made_up_text(size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  const std::string consonants = "bcdfghlmnprstvw";
  const std::string vowels = "aeiou";
  std::vector<std::string> words(200);
  for (std::string& word : words) {
    const size_t syllables = 1 + random() % 3;
    for (size_t i = 0; i < syllables; ++i) {
      word += consonants[random() % consonants.size()];
      word += vowels[random() % vowels.size()];
    }
  }
  std::string text;
  while (text.size() < bytes) {
    text += words[random() % words.size()];
    text += random() % 9 == 0 ? ". " : " ";
  }
  text.resize(bytes);
  return text;
}

std::string prepare_bytes(
    const fs::path& prefix,
    const std::string& text,
    const std::vector<std::string>& more) {
  const std::string input = prefix.string() + ".txt";
  write_file(input, text);
  std::vector<std::string> arguments = {
      "prepare",
      "--input",
      input,
      "--tokenizer",
      "bytes",
      "--out",
      prefix.string()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const auto result = run_program(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return prefix.string();
}

json tiny_run(const std::string& dataset) {
  return {
      {"model",
       {{"config",
         {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 259},
          {"hidden_size", 32},
          {"intermediate_size", 44},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-5},
          {"tie_word_embeddings", true}}}}},
      {"training", {{"seq_length", 48}}},
      {"dataset", {{"name", dataset}}}};
}

json with_experts(json model) {
  model.update(
      {{"architectures", {"Dots1ForCausalLM"}},
       {"model_type", "dots1"},
       {"n_routed_experts", 8},
       {"n_shared_experts", 1},
       {"num_experts_per_tok", 3},
       {"n_group", 2},
       {"topk_group", 1},
       {"norm_topk_prob", true},
       {"routed_scaling_factor", 1.5},
       {"moe_intermediate_size", 24},
       {"first_k_dense_replace", 1}});
  return model;
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string tensor_bytes(const fs::path& file) {
  const std::string bytes = read_file(file);
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes))
    return {};
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  return bytes.substr(sizeof(header_bytes) + header_bytes);
}

std::vector<json> read_metrics(const fs::path& run_dir) {
  std::vector<json> steps;
  std::ifstream file(run_dir / "metrics.jsonl");
  // A line that is being written has no end yet.
  for (std::string line; std::getline(file, line) && !file.eof();)
    steps.push_back(json::parse(line));
  return steps;
}

std::vector<double> losses_of(const fs::path& run_dir) {
  std::vector<double> losses;
  for (const json& step : read_metrics(run_dir))
    losses.push_back(step.at("loss").get<double>());
  return losses;
}

double largest_relative_difference(
    const std::vector<double>& actual,
    const std::vector<double>& expected) {
  if (actual.size() != expected.size())
    return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference =
        std::abs(actual[i] - expected[i]) / std::abs(expected[i]);
    if (!std::isfinite(difference))
      return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace brigade::testing
