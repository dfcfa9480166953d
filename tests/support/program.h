// The program itself, run as its users run it, and what it leaves behind.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace brigade::testing {

using Arguments = std::vector<std::string>;

struct ProgramResult {
  int exit_code = 0;  // 128 + signal for one that was killed
  std::string out;
  std::string err;
  int64_t peak_bytes = 0;  // resident, of the largest of its processes
};

// A process whose output goes to files.
class StartedProgram {
 public:
  // `program` is looked up in PATH. `environment` is added to this process's.
  StartedProgram(
      const std::string& program,
      const Arguments& arguments,
      const std::map<std::string, std::string>& environment = {});
  ~StartedProgram();
  StartedProgram(const StartedProgram&) = delete;
  StartedProgram& operator=(const StartedProgram&) = delete;

  ProgramResult wait();
  pid_t pid() const { return pid_; }
  std::string output_so_far() const;

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
};

// The program of this build.
std::string program_path();
ProgramResult run_program(
    const Arguments& arguments,
    const std::map<std::string, std::string>& environment = {});

// `brigade train` of that config into that folder, with `more` behind them.
Arguments train_arguments(
    const std::filesystem::path& config,
    const std::filesystem::path& run_dir,
    const Arguments& more);

// A folder for runs: in memory where the machine has enough of it, since
// checkpoints are synced to disk.
class RunsFolder {
 public:
  RunsFolder();
  ~RunsFolder();
  RunsFolder(const RunsFolder&) = delete;
  RunsFolder& operator=(const RunsFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const {
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

// English-looking text of pronounceable words, the same for the same seed.
std::string made_up_text(size_t bytes, unsigned seed = 1);

// Writes the text and has `brigade prepare` make bytes-tokens of it. Returns
// dataset.name.
std::string prepare_bytes(
    const std::filesystem::path& prefix,
    const std::string& text,
    const std::vector<std::string>& more = {});

// A Llama of 4 layers, 4 heads, 2 kv heads and 259 tokens on sequences of 48
// tokens, with the dataset of prepare_bytes().
nlohmann::json tiny_run(const std::string& dataset);

// The config of its model with experts in all layers but the first: dots1's, of
// which each token visits 3 of 8 and a shared one.
nlohmann::json with_experts(nlohmann::json model);

void write_file(const std::filesystem::path& path, const std::string& text);
std::string read_file(const std::filesystem::path& path);

// The tensors of a safetensors file, without its header, which names the run.
std::string tensor_bytes(const std::filesystem::path& file);

// One object per step.
std::vector<nlohmann::json> read_metrics(const std::filesystem::path& run_dir);
std::vector<double> losses_of(const std::filesystem::path& run_dir);

// The largest |a - b| / |b|; infinite when the lengths differ or a value is not
// finite.
double largest_relative_difference(
    const std::vector<double>& actual,
    const std::vector<double>& expected);

}  // namespace brigade::testing
