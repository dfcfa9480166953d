// What a trained model thinks of given tokens: -ln p of each that follows
// others.
//
// Replicas of the mesh (dp and cp: a sequence is not cut) divide the work; the
// stages of a replica pass the hidden states on, its tp ranks share each layer.
// Where replicas divide the experts too, all of them make as many forwards.
// All calls are collective over the world, with the same arguments everywhere.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/data/sample_source.h"
#include "brigade/data/token_loss.h"
#include "brigade/generate/stored_model.h"
#include "brigade/model/decoder_model.h"

namespace brigade {

// The score of tokens that follow a context.
struct ContinuationScore {
  double log_likelihood = 0;  // nats
  // Each of its tokens is the likeliest at its place.
  bool is_greedy = false;
};

// A context and what may follow it; neither is empty.
struct Continuations {
  std::vector<int64_t> context;
  std::vector<std::vector<int64_t>> choices;
};

// Tokens of which the last `predicted` are scored, each after all before it.
// Without `targets`, 0 < predicted < tokens.size().
struct ScoredWindow {
  std::vector<int64_t> tokens;
  int64_t predicted = 0;
  // What follows each token but the last, in place of `predicted`; kNoTarget
  // where that is not scored.
  std::vector<int64_t> targets = {};
};

// Windows of tokens that are predicted but for their first.
struct LossWindows {
  int64_t count = 0;   // of the windows
  int64_t length = 0;  // tokens of a window but for the first
  int64_t rows = 1;    // windows at a time
  // Fills in a window's inputs and what follows each, kNoTarget where that does
  // not count. A shorter window leaves the rest of both, zeros and kNoTarget.
  std::function<void(
      int64_t window,
      std::span<int64_t> inputs,
      std::span<int64_t> targets)>
      read;
  std::string name = {};  // of the text or dataset, for errors
};

// What the model finds likeliest in the place of each of a window's targets.
struct TopTokensRequest {
  int64_t windows = 0;
  int64_t rows = 1;        // windows at a time
  int64_t k = 1;           // tokens of each place
  int64_t vocabulary = 0;  // that these are of
  // The tokens of a window but for its last: what the model reads.
  std::function<std::vector<int64_t>(int64_t window)> read;
  // Called in the order of the windows, on rank 0 alone.
  std::function<void(int64_t window, const TeacherTokens& of_targets)> take;
};

class Scorer {
 public:
  // `config`: inference_config()'s for the mesh's dims. Throws DataError when a
  // tensor is missing.
  Scorer(
      const StoredModel& stored,
      const TrainConfig& config,
      const ProcessMesh& mesh);

  // `progress` is called with the number of windows done. Throws NumericError,
  // on all ranks, for a sum that is not finite, and names the windows that made
  // it so.
  TokenLoss loss(
      const LossWindows& windows,
      const std::function<void(int64_t)>& progress);

  // The scores in the order of the requests. The model sees, of each choice
  // with its context, the last `most_tokens` tokens before the choice's last
  // one, and no choice has more tokens than that.
  std::vector<std::vector<ContinuationScore>> score(
      const std::vector<Continuations>& requests,
      int64_t most_tokens,
      const std::function<void(int64_t)>& progress);

  // -ln p of the predicted tokens of each window; 0 for one without tokens. A
  // rank needs the tokens of those windows alone that is_mine() names.
  std::vector<double> nats(
      const std::vector<ScoredWindow>& windows,
      const std::function<void(int64_t)>& progress);

  // Whether this rank's replica computes what is asked of that item.
  bool is_mine(int64_t item) const {
    return item % mesh_.dp_cp()->size() == mesh_.dp_cp()->rank();
  }

  // Each rank holds what is said of `rows` windows, 12 bytes for each of k
  // tokens, and all ranks of the world add it up, replica after replica.
  void top_tokens(
      const TopTokensRequest& request,
      const std::function<void(int64_t)>& progress);

 private:
  using Windows = std::vector<std::vector<int64_t>>;
  // One forward of this replica; on the rank that counts, what it says of each
  // place of the windows, padded to the longest; else nothing.
  DecoderModel::TopTokens top_tokens_of(
      const Windows& windows,
      const TopTokensRequest& request);
  // Collective. To rank 0's `take`, from the rank that has something.
  void hand_over(
      const DecoderModel::TopTokens& top,
      const Windows& windows,
      int64_t first,
      const TopTokensRequest& request);
  // One forward of this replica: on the last stage, what the head reads.
  torch::Tensor hidden_of(const torch::Tensor& ids);
  // One forward of this replica: on the last stage, the sum over the targets
  // that are not -100.
  double loss_of(const torch::Tensor& ids, const torch::Tensor& targets);
  // On the last stage ln p of the token after `ids`, float32 [V]; undefined
  // elsewhere.
  torch::Tensor next_log_probabilities(
      const std::vector<int64_t>& ids,
      DecoderModel::GenerationState& state);
  ContinuationScore score_choice(
      const std::vector<int64_t>& choice,
      const torch::Tensor& first,
      DecoderModel::GenerationState state);
  // Behind `made` forwards of this replica, where another one makes `most`: the
  // rest, of a token that nobody reads, as the others' rows meet its experts.
  void keep_up(int64_t made, int64_t most);
  // The share of so many items of the replica with most of them.
  int64_t most_of_replica(int64_t items) const {
    const int64_t replicas = mesh_.dp_cp()->size();
    return (items + replicas - 1) / replicas;
  }
  // One rank of each replica counts.
  bool counts() const {
    return mesh_.coordinate().leads_stage() && model_->part().is_last;
  }

  const ProcessMesh& mesh_;
  std::shared_ptr<DecoderModel> model_;
};

}  // namespace brigade
