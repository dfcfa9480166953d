// Draws the next tokens of several texts from a model whose parts lie on
// several ranks.
//
// One replica of the model works: tokens go in at its first stage, the hidden
// states pass from stage to stage, the first tp rank of the last stage draws,
// and broadcasts the token to all ranks of the world. Replicas that divide the
// experts with it compute the same. The ranks of the others (dp and cp: one
// token at a time leaves little to divide) only receive, so that every rank
// sees the same text and ends at the same token.
//
// Cost of n tokens of each of b texts, per rank: the all-reduces of tp on
// [b n, C] (two per layer and one for the embedding), one send of [b n, C] to
// the next stage, one all-gather of the last tokens' logits over tp, one
// broadcast of 8 b bytes; with divided experts their exchange in each layer.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/generate/sampling.h"
#include "brigade/generate/stored_model.h"
#include "brigade/model/decoder_model.h"

namespace brigade {

class TokenGenerator {
 public:
  // Reads this rank's part of the model. `config`: inference_config()'s for
  // the mesh's dims. Throws DataError when a tensor is missing.
  TokenGenerator(
      const StoredModel& stored,
      const TrainConfig& config,
      const ProcessMesh& mesh,
      const SamplingOptions& sampling);

  // Forgets the texts so far. One seed for each new one: what is drawn for a
  // text does not depend on those beside it.
  void begin(const std::vector<uint64_t>& seeds);

  // Instead of begin(): of one text whose first `tokens` are still what next()
  // was given, only those are kept.
  void resume(int64_t tokens, uint64_t seed);

  // Collective over the world, with the same arguments everywhere. tokens: [B,
  // T], those after the ones of the calls before. Returns the B tokens that
  // follow them; only those with a true `is_drawn` mean something. Throws
  // NumericError on all ranks where logits to draw from are not finite.
  std::vector<int64_t> next(
      const torch::Tensor& tokens,
      const std::vector<bool>& is_drawn);

 private:
  // The token of the text at `row`; kNotFinite where a logit is not.
  int64_t draw(const torch::Tensor& logits, size_t row);

  const ProcessMesh& mesh_;
  int drawing_rank_;  // of the world
  // Its replica does not work. Those that divide the experts all do, on
  // the same tokens.
  bool is_listener_;
  SamplingOptions sampling_;
  std::vector<std::mt19937_64> random_;  // by text
  int64_t seen_tokens_ = 0;              // of each text, on every rank
  std::shared_ptr<DecoderModel> model_;  // null in a listener
  DecoderModel::GenerationState state_;
};

}  // namespace brigade
