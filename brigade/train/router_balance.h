// What the routers of all ranks did in a step, put together, and what of it the
// next step goes on from: what they are balanced over, and their biases.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/metrics/expert_use.h"
#include "brigade/model/router_statistics.h"
#include "brigade/train/stage_runtime.h"

namespace brigade {

// How often each expert of a layer was chosen, by layer of the whole model.
using ChoicesByLayer = std::map<int64_t, std::vector<int64_t>>;

struct RouterUse {
  std::vector<ExpertUse> layers;  // those with experts
  // "the router of layer 3 gave weights that are not finite, as its input is
  // not", of the first such layer; "": there is none.
  std::string problem;
  // By tokens that have a loss, over all ranks; empty where nobody asks.
  ChoicesByLayer learned;
};

// Whether a step asks for the choices of tokens that have a loss: for the
// balance loss over the last step's choices, or to move a router's bias.
bool asks_for_choices(const TrainConfig& config);

// What a step moves a router's bias by, [E]: `rate` up where an expert was
// chosen less often than the mean of all, down where more often
// (arXiv:2408.15664). Float32. PURE.
torch::Tensor bias_update(const std::vector<int64_t>& choices, double rate);

// The routers of this rank's stages, from step to step. Called by the trainer's
// thread between backwards.
class RouterBalance {
 public:
  // Both must outlive it.
  RouterBalance(const TrainConfig& config, const ProcessMesh& mesh);

  // ModelContext::routers of all stages.
  const std::shared_ptr<RouterRecord>& record() const { return record_; }
  // A step begins: what was noted so far is not of it.
  void clear() { record_->noted.clear(); }
  // The values of tensors of the device, one after the other.
  using Read =
      std::function<std::vector<double>(const std::vector<torch::Tensor>&)>;
  // Collective over the world: what was noted. Reads at most once.
  RouterUse sum_up(const Read& read) const;
  // Between a step's backwards and its update, by RouterUse::learned: what the
  // next step's balance loss is over, and the biases of routers that have one,
  // by bias_update(). Before ParamStepper::step(), which gathers what ZeRO's
  // stage 3 divides: a backward over weights that were written since is an
  // error.
  void learn(const ChoicesByLayer& learned, const Stages& stages);

  // CheckpointManifest::expert_choices.
  nlohmann::json saved() const;
  // Between steps: goes on from what saved() returned. Throws DataError, which
  // names the checkpoint, where it is of another model.
  void load(
      const nlohmann::json& saved,
      const std::filesystem::path& checkpoint);

 private:
  void set_choices(const ChoicesByLayer& choices);

  const TrainConfig& config_;
  const ProcessMesh& mesh_;
  const std::shared_ptr<RouterRecord> record_ =
      std::make_shared<RouterRecord>();
  // Those of the last step that updated something; empty without a balance over
  // the batch.
  ChoicesByLayer choices_;
};

}  // namespace brigade
