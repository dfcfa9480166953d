// A training run on disk, whole or absent:
//   DIR/manifest.json                    what it is, written last (manifest.h)
//   DIR/model[-rank-K].safetensors       weights, Hugging Face's names
//   DIR/optimizer[-rank-K].safetensors   STATE.NAME of the optimizer's states
//   DIR/...                              files that came with it (tokenizer)
//
// Each tensor is stored in the pieces in which ranks held it, with the place of
// each piece in the whole tensor, so that a run may continue under another
// layout: a rank reads what overlaps with its own part.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "brigade/checkpoint/tensor_part.h"
#include "brigade/run/manifest.h"
#include "brigade/safetensors/safetensors.h"

namespace brigade {

// A stored tensor, its pieces put together.
struct CheckpointTensor {
  std::string name;
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<uint64_t> shape;
  uint64_t size_bytes = 0;
  int pieces = 1;
  bool is_whole = true;   // no part is missing
  bool is_state = false;  // the optimizer's, by the file it is in
};

// A checkpoint on disk. Validates the manifest, the size and the header of
// every file, and that all files belong to the manifest's run and step;
// find_damage() (verify.h) verifies the contents.
class Checkpoint {
 public:
  // `path`: DIR; a folder of numbered ones, of which the highest counts; or a
  // run folder, which holds such a folder "checkpoints". Throws DataError
  // naming what is wrong or missing.
  explicit Checkpoint(const std::filesystem::path& path);

  const std::filesystem::path& directory() const { return directory_; }
  const CheckpointManifest& manifest() const { return manifest_; }
  bool contains(const std::string& name) const;

  // Fills part.tensor (converting float types and codes; padding is zeroed).
  // Codes come back bit for bit where ranks cut the tensor as it was saved.
  // Throws DataError naming the tensor when it is missing, has holes or another
  // shape.
  void read(const State& part) const;
  // The whole tensor, in the stored type; of codes float32.
  torch::Tensor read_whole(const std::string& name) const;
  std::vector<std::string> names() const;
  // What is stored, in the order of names().
  std::vector<CheckpointTensor> tensors() const;

 private:
  struct Piece {
    const SafetensorsTensor* stored = nullptr;
    const SafetensorsTensor* scales = nullptr;  // where those are codes
    bool is_state = false;
    Slice slice;  // of the whole tensor
  };
  const std::vector<Piece>& pieces_of(const std::string& name) const;
  void check_file(const SafetensorsFile& file) const;
  void add_pieces(const SafetensorsFile& file);
  static torch::Tensor values_of(const Piece& piece);

  std::filesystem::path directory_;
  CheckpointManifest manifest_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::vector<Piece>> pieces_;
};

}  // namespace brigade
