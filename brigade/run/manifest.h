// What a checkpoint is: DIR/manifest.json, written last. A directory without
// one is no checkpoint.
//
// Version 2 lists every file with its size and SHA-256, carries the id of the
// run, and ends with the SHA-256 of itself, so that no part of a checkpoint can
// change without being noticed. Version 1 had none of this; it still loads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "brigade/files/file.h"

namespace brigade {

struct CheckpointManifest {
  int64_t step = 0;             // steps done
  int64_t tokens = 0;           // tokens trained on
  int64_t samples = -1;         // the next sample of the data; -1: version 1
  int64_t skipped_steps = 0;    // of `step`, those that updated nothing
  std::string run;              // the run's id, kept when it is continued
  nlohmann::json data;          // what the datasets held; null: version 1
  nlohmann::json model;         // Hugging Face config, normalised
  nlohmann::json model_source;  // as it was written; null: not known
  nlohmann::json config;        // the run's config
  // What the optimizer keeps besides tensors; null: nothing that the steps do
  // not say. A list by group where groups that train apart differ.
  nlohmann::json optimizer;
  // {"LAYER": [choices of each expert]} of the last step, where the balance
  // loss of the next one is over them; null: it is not.
  nlohmann::json expert_choices;
  std::string dtype;      // of the weights: "float32", "bfloat16"
  std::string tokenizer;  // "bytes", or a path relative to DIR, or ""
  // The folder of the base model in an adapter's run, whose weights are not in
  // the checkpoint. "": all are.
  std::string base_model;
  std::vector<std::string> files;  // that hold tensors
  int64_t writers = 1;             // ranks that wrote them
  // Every file but the manifest; empty: version 1, nothing can be verified.
  std::map<std::string, FileDigest> contents;

  bool is_verifiable() const { return !contents.empty(); }
};

inline constexpr const char* kManifestFile = "manifest.json";
// How the names of files begin that hold weights, and what the optimizer keeps.
inline constexpr const char* kWeightsFile = "model";
inline constexpr const char* kOptimizerFile = "optimizer";
// The key in a file's __metadata__ of {"NAME": [dim, begin, end]}, the tensors
// that are pieces of a larger one.
inline constexpr const char* kPiecesKey = "brigade.pieces";
// A part that is codes is two tensors in the file: its name behind each of
// these prefixes.
inline constexpr const char* kCodesPrefix = "codes.";
inline constexpr const char* kScalesPrefix = "scales.";
// The keys in a file's __metadata__, from version 2 on, of the run and the step
// to which it belongs.
inline constexpr const char* kRunKey = "brigade.run";
inline constexpr const char* kStepKey = "brigade.step";

// Version 2, as text.
std::string manifest_to_text(const CheckpointManifest& manifest);
// Reads DIR/manifest.json. Throws DataError that names the file and what is
// wrong with it: damaged, edited, of another version, outside its directory.
CheckpointManifest read_manifest(const std::filesystem::path& directory);

}  // namespace brigade
