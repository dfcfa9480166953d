// The commands that work with libtorch, which takes a third of a second to
// load: what their command lines give, and their work. cli/table/ declares the
// options; cli/*.cpp does the work in the program that has libtorch
// (brigade-torch); in the one that people start (brigade), cli/front/ starts
// that program with the same command line, or as the ranks that it supervises.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "brigade/config/train_config.h"
#include "brigade/generate/generate_options.h"
#include "brigade/run/checkpoint_folder.h"
#include "brigade/train/bucket_tuner.h"
#include "cli/inspect.h"
#include "cli/options.h"
#include "cli/template_options.h"

namespace brigade::cli {

struct TrainArguments {
  ConfigArguments config;
  bool prints_config = false;
  bool is_dry_run = false;
  bool prints_schedule = false;
  std::string help_config;  // "", "text", "markdown"
  RunOptions run;
  int max_restarts = 0;

  // Nothing is asked for in place of it.
  bool trains() const {
    return !prints_config && !is_dry_run && !prints_schedule;
  }
};
void train(const TrainArguments& arguments);

struct GenerateArguments {
  GenerateOptions text;
  std::vector<std::string> prompts;   // --prompt
  std::filesystem::path prompt_file;  // --prompts; "-": standard input
  bool as_json = false;
  ConfigArguments layout;
};
void generate(const GenerateArguments& arguments);

struct ChatSessionArguments {
  GenerateOptions text;
  std::string system;  // "": none
  TemplateArguments chat_template;
  ConfigArguments layout;  // its dtype alone
};
void chat(const ChatSessionArguments& arguments);

struct EvaluateArguments {
  ModelPlace model;
  std::string tokenizer;
  std::filesystem::path text;
  std::string dataset;
  bool writes_reference = false;  // for a dataset of pairs
  std::filesystem::path top_k;    // a file to write; "": none
  int64_t k = 32;                 // of top_k
  bool by_document = false;       // without it: with a mask, or windows
  std::vector<std::filesystem::path> tasks;
  int64_t seq_length = 0;  // 0: the model's positions, at most 2048
  int64_t most_tokens = 0;
  int64_t rows = 8;
  bool gives_rows = false;  // they are the user's
  bool as_json = false;
  std::filesystem::path scores;
  ConfigArguments layout;
};
void evaluate(const EvaluateArguments& arguments);

struct ExportArguments {
  std::string run;
  std::string out;
  std::string dtype;               // "": the model's
  std::string experts;             // as ExpertTensors names them; "": separate
  std::optional<double> shard_gb;  // absent: ExportOptions' default
  std::string gguf;                // instead of out
  std::string type;                // of the GGUF; "": as stored
  std::string adapter;             // a folder, with --merge
  bool merges = false;             // the adapter into the base model
  int64_t upcycle = 0;             // experts to make of each MLP; 0: none
  int64_t experts_per_token = 2;   // with upcycle
};
void export_gguf(const ExportArguments& arguments);
void export_model(const ExportArguments& arguments);

struct DoctorArguments {
  std::optional<int> nproc;
  std::string folder = ".";
};
void check_machine(const DoctorArguments& arguments);

struct TuneBucketsArguments {
  ConfigArguments config;
  BucketTunerOptions tuner;
  std::string out;
  bool writes_in_place = false;
};
void tune_buckets(const TuneBucketsArguments& arguments);

struct TuneRateArguments {
  ConfigArguments config;
  std::vector<int64_t> widths;
  std::vector<double> rates;  // empty: around the config's
  int64_t steps = 60;
  int64_t checked_steps = 10;
  std::string out;  // "": beside the config
  std::string svg;  // "": none
};
void tune_rate(const TuneRateArguments& arguments);

struct CheckpointArguments {
  std::string path;
  std::string out;
  Retention retention;
  bool is_dry_run = false;
};
void list_checkpoints(const CheckpointArguments& arguments);
void verify_checkpoints(const CheckpointArguments& arguments);
void show_checkpoint(const CheckpointArguments& arguments);
void prune_checkpoints(const CheckpointArguments& arguments);
void convert_checkpoint(const CheckpointArguments& arguments);

void inspect(const InspectArguments& arguments);

}  // namespace brigade::cli
