// What `brigade inspect` shows, one function per kind of file. All print to
// stdout and throw what reading the file throws.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "brigade/model_spec/decoder_config.h"
#include "brigade/run/stored_checkpoint.h"

namespace brigade::cli {

struct InspectArguments {
  std::string path;
  std::string tokenizer;             // to show a dataset's text; empty: its own
  std::optional<uint64_t> document;  // the one of a dataset to show whole
  bool list_all = false;             // every tensor on a line of its own
};

void inspect_dataset(const InspectArguments& arguments);
void inspect_tokenizer(const std::string& spec);
void inspect_safetensors(
    const std::filesystem::path& file,
    const InspectArguments& arguments);
// A model's config.json, a training config, a dataset's or checkpoint's
// description, an index of shards, or a tokenizer.json.
void inspect_json(
    const std::filesystem::path& file,
    const InspectArguments& arguments);
// A Hugging Face model, a checkpoint, or a run.
void inspect_folder(
    const std::filesystem::path& folder,
    const InspectArguments& arguments);
// A checkpoint, a folder of numbered ones, or a run folder.
void inspect_checkpoint(
    const std::filesystem::path& folder,
    const InspectArguments& arguments);

// How much there is of tensors in all, then one line for those that differ only
// in the number of their layer; list_all: a line for each.
void print_tensors(const std::vector<CheckpointTensor>& tensors, bool list_all);

// Rows of two columns, the first one as wide as its widest.
using Rows = std::vector<std::pair<std::string, std::string>>;
void print_rows(const Rows& rows);
Rows model_rows(const DecoderConfig& config);

std::string grouped(uint64_t number);  // 1,234,567
// Printable on one line, in quotes, cut after max_bytes.
std::string quoted(const std::string& text, size_t max_bytes);

}  // namespace brigade::cli
