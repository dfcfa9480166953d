// One process of a user's program: a rank with wrapped models, or plain torch
// with the batches of all ranks.
#pragma once

#include <torch/nn.h>
#include <torch/optim.h>

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "brigade/wrap/data_parallel.h"
#include "tests/data_parallel/pseudo_random.h"

namespace brigade::testing {

using torch::Tensor;
using UserNet = std::shared_ptr<torch::nn::SequentialImpl>;
using UserModel = DataParallel<UserNet>;

// How a program's models are wrapped.
struct Setting {
  std::string name;
  GradSyncOptions options;
  WrapOptions wrap = {};
};
inline std::ostream& operator<<(std::ostream& out, const Setting& each) {
  return out << each.name;
}

// Every hand-over and sharding, with gathers in place and during forward,
// parameter by parameter, and where gradients may be missing.
inline std::vector<Setting> all_settings() {
  std::vector<Setting> settings;
  settings.push_back({"ParamDtype", {}});
  for (const auto sharding :
       {Sharding::kNone,
        Sharding::kOptimizer,
        Sharding::kGradients,
        Sharding::kParameters}) {
    GradSyncOptions options;
    options.handover = GradHandover::kMainGrad;
    options.sharding = sharding;
    const std::string name = std::string("MainGrad_") + to_string(sharding);
    settings.push_back({name, options});
    options.gather = GatherMode::kOverlapForward;
    if (sharding == Sharding::kOptimizer || sharding == Sharding::kGradients)
      settings.push_back({name + "_Overlapped", options});
  }
  const std::vector<Setting> whole = {
      settings[0], settings[1], {"MainGrad_optimizer", settings[2].options}};
  for (Setting setting : whole) {
    setting.options.missing_gradient = MissingGradient::kZero;
    settings.push_back({setting.name + "_Zero", setting.options});
    if (setting.options.sharding == Sharding::kNone)
      settings.push_back(
          {setting.name + "_PerParam",
           setting.options,
           {.sync = GradSyncAlgorithm::kPerParam}});
  }
  for (Setting& setting : settings) {
    setting.options.bucket_capacity_bytes = 100;
    setting.options.first_bucket_bytes = 40;
  }
  return settings;
}

inline UserNet make_user_net(int64_t inputs, int64_t outputs, int64_t seed) {
  auto net = std::make_shared<torch::nn::SequentialImpl>(
      torch::nn::Linear(inputs, 5),
      torch::nn::Tanh(),
      torch::nn::Linear(5, outputs));
  fill_params(*net, seed);
  return net;
}

class UserRun {
 public:
  UserRun(int ranks, const Setting* setting, CommunicatorPtr world)
      : ranks_(ranks), setting_(setting), world_(std::move(world)) {}

  // Returns the index of the model.
  size_t add(UserNet net) {
    nets_.push_back(net);
    models_.push_back(
        setting_ == nullptr
            ? nullptr
            : std::make_unique<UserModel>(
                  net, world_, setting_->options, setting_->wrap));
    return nets_.size() - 1;
  }
  UserNet& net(size_t model = 0) { return nets_[model]; }
  bool is_plain() const { return setting_ == nullptr; }
  bool is_main_grad() const {
    return !is_plain() && setting_->options.handover == GradHandover::kMainGrad;
  }
  bool is_sharded(Sharding sharding) const {
    return !is_plain() && setting_->options.sharding == sharding;
  }
  UserModel& wrapped(size_t model = 0) { return *models_[model]; }

  Tensor forward(const Tensor& x, size_t model = 0) {
    return is_plain() ? nets_[model]->forward(x) : models_[model]->forward(x);
  }
  // Runs for each rank whose batches are this process's.
  void backward(const std::function<Tensor(int rank)>& loss_of) {
    if (!is_plain()) {
      loss_of(world_->rank()).backward();
      return;
    }
    for (int rank = 0; rank < ranks_; ++rank)
      (loss_of(rank) / ranks_).backward();
  }
  // Held during all micro-batches but the last.
  std::optional<NoSync> no_sync(size_t model = 0) {
    if (is_plain())
      return std::nullopt;
    return std::optional<NoSync>(
        std::in_place, models_[model]->sync(), NoSync::Mode::kAccumulate);
  }
  std::vector<Tensor> params(size_t model = 0) {
    return is_main_grad() ? owned_parameters(models_[model]->sync())
                          : nets_[model]->parameters();
  }
  void step(torch::optim::Optimizer& optimizer, size_t model = 0) {
    if (is_main_grad())
      models_[model]->step(optimizer);
    else
      optimizer.step();
  }
  // Reads or writes whole weights.
  void with_weights(const std::function<void()>& body, size_t model = 0) {
    std::optional<FullWeights> whole;
    if (!is_plain()) {
      models_[model]->sync().weights().need_all();
      whole.emplace(models_[model]->sync());
    }
    body();
  }
  // What is compared.
  void note(const Tensor& value) {
    noted_.push_back(value.detach().to(torch::kFloat).clone());
  }
  void note_weights(size_t model = 0) {
    with_weights(
        [&] {
          for (const Tensor& param : nets_[model]->parameters())
            note(param);
        },
        model);
  }
  const std::vector<Tensor>& noted() const { return noted_; }

 private:
  int ranks_;
  const Setting* setting_;
  CommunicatorPtr world_;
  std::vector<UserNet> nets_;
  std::vector<std::unique_ptr<UserModel>> models_;
  std::vector<Tensor> noted_;
};

inline Tensor user_batch(int64_t step, int rank, int64_t micro = 0) {
  return pseudo_random({4, 3}, 100 * step + 10 * micro + rank + 1);
}
inline Tensor user_loss(const Tensor& y) {
  return (y - 0.3).pow(2).mean();
}

}  // namespace brigade::testing
