// What the routers of all ranks did in a step, put together.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/metrics/expert_use.h"
#include "brigade/model/router_statistics.h"
#include "brigade/model_spec/decoder_config.h"

namespace brigade {

// How often each expert of a layer was chosen, by layer of the whole model.
using ChoicesByLayer = std::map<int64_t, std::vector<int64_t>>;

struct RouterUse {
  std::vector<ExpertUse> layers;  // those with experts
  // The first of them whose router gave weights that are not finite.
  std::optional<int64_t> bad_layer;
  // By tokens that have a loss, over all ranks; empty where nobody asks.
  ChoicesByLayer learned;

  // "the router of layer 3 gave weights that are not finite, as its input is
  // not"; needs a bad layer.
  std::string describe_bad_layer() const;
};

// Whether routers have a balance loss over the last step's choices.
bool is_balanced_over_batch(const TrainConfig& config);

// Whether a step asks for the choices of tokens that have a loss: for that
// balance loss, or to move a router's bias.
bool asks_for_choices(const TrainConfig& config);

// Whether RouterUse::learned is asked for.
enum class LearnedChoices { kLeaveOut, kSumUp };

// Collective over the world. `noted` is of this rank's stages, on the CPU.
RouterUse sum_up_routers(
    const DecoderConfig& decoder,
    const ProcessMesh& mesh,
    LearnedChoices choices,
    const RouterStatisticsByLayer& noted);

// What a step moves a router's bias by, [E]: `rate` up where an expert was
// chosen less often than the mean of all, down where more often
// (arXiv:2408.15664). Float32. PURE.
torch::Tensor bias_update(const std::vector<int64_t>& choices, double rate);

}  // namespace brigade
