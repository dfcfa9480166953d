// A training run on disk, whole or absent:
//   DIR/manifest.json                what it is, written last
//   DIR/model[-rank-K].safetensors   weights, Hugging Face's names
//   DIR/optimizer[-rank-K].safetensors   master., exp_avg., exp_avg_sq. + NAME
//   DIR/...                          files that came with the run (tokenizer)
//
// Written under DIR.tmp and renamed once every rank has written and synced its
// part. Each tensor is stored in the pieces in which ranks held it, with the
// place of each piece in the whole tensor, so that a run may continue under
// another layout: a rank reads what overlaps with its own part.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/safetensors/safetensors.h"

namespace brigade {

// One rank's part of a tensor: whole[begin:end] along `dim`; dim -1: all of it.
// `tensor` may be longer along dim (padding, which is not stored).
struct TensorPart {
  std::string name;
  int dim = -1;
  int64_t begin = 0;
  int64_t end = 0;
  torch::Tensor tensor;  // contiguous CPU memory, float32 or bf16
  // Defined: `tensor` (bf16) and this (int16) are the halves of a float32
  // master (ops/split_master.h), which is what the file has. In memory it is
  // whole only while this part is read or written.
  torch::Tensor master_low = {};
};

struct CheckpointManifest {
  int64_t step = 0;                // steps done
  int64_t tokens = 0;              // tokens trained on
  nlohmann::json model;            // Hugging Face config, normalised
  nlohmann::json model_source;     // as it was written; null: not known
  nlohmann::json config;           // the run's config
  std::string dtype;               // of the weights: "float32", "bfloat16"
  std::string tokenizer;           // "bytes", or a path relative to DIR, or ""
  std::vector<std::string> files;  // that hold tensors
  int64_t writers = 1;             // ranks that wrote them
};

struct CheckpointToSave {
  CheckpointManifest manifest;  // files are filled in
  std::vector<TensorPart> weights;
  std::vector<TensorPart> optimizer;
  // Copied into DIR by rank 0: file -> name in DIR, "tokenizer/tokenizer.json".
  std::map<std::filesystem::path, std::string> attachments;
};

// Collective over `world`. Ranks with writer < 0 have nothing to store; the
// others are numbered 0 ... writers - 1, rank 0 of the world among them.
// Replaces DIR if it exists. Throws StorageError on every rank when one of them
// cannot write; what DIR held before is then unharmed and DIR.tmp is removed.
void save_checkpoint(
    const std::filesystem::path& directory,
    CheckpointToSave checkpoint,
    int writer,
    Communicator& world);

// A stored tensor, its pieces put together.
struct CheckpointTensor {
  std::string name;
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<uint64_t> shape;
  uint64_t size_bytes = 0;
  int pieces = 1;
  bool is_whole = true;  // no part is missing
};

// A checkpoint on disk. Validates the manifest and every file's header.
class Checkpoint {
 public:
  // `path`: DIR; a folder of numbered ones, of which the highest counts; or a
  // run folder, which holds such a folder "checkpoints". Throws DataError
  // naming what is wrong or missing.
  explicit Checkpoint(const std::filesystem::path& path);

  const std::filesystem::path& directory() const { return directory_; }
  const CheckpointManifest& manifest() const { return manifest_; }
  bool contains(const std::string& name) const;

  // Fills part.tensor (converting float types; padding is zeroed). Throws
  // DataError naming the tensor when it is missing, has holes or another shape.
  void read(const TensorPart& part) const;
  // The whole tensor, in the stored type.
  torch::Tensor read_whole(const std::string& name) const;
  std::vector<std::string> names() const;
  // What is stored, in the order of names().
  std::vector<CheckpointTensor> tensors() const;

 private:
  struct Piece {
    const SafetensorsTensor* stored;
    int dim;
    int64_t begin;
    int64_t end;
  };
  const std::vector<Piece>& pieces_of(const std::string& name) const;

  std::filesystem::path directory_;
  CheckpointManifest manifest_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::vector<Piece>> pieces_;
};

}  // namespace brigade
