// A few steps of one layout by the real trainer, its ranks as threads, and what
// came out of them.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "layouts.h"
#include "tests/support/program.h"

namespace brigade {

// One batch of the held-out part after every third step.
inline constexpr int kEvalEvery = 3;
inline constexpr double kEvalFraction = 0.2;

struct TrainingResult {
  std::string failure;  // empty: the program did what it should
  std::vector<double> losses;
  std::vector<double> eval_losses;
  std::vector<double> grad_norms;
  // exp_avg after step 1: (1 - beta1) times the clipped mean gradient. Of what
  // AdamW steps; of other optimizers' weights alone are compared.
  std::map<std::string, torch::Tensor> gradients;
  std::map<std::string, torch::Tensor> weights;  // after the last step
  // Gemma's norms scale by 1 + weight, with weights near 0: it is the scale
  // whose error counts.
  bool norms_add_one = false;
};

// The largest errors of each kind, relative to the oracle's value or norm.
struct Errors {
  double loss = 0;  // of training and of evaluation
  double gradient = 0;
  double weight = 0;
  std::string gradient_name;  // whose error it is
  std::string weight_name;

  void include(const Errors& other);
};

// Errors are infinite where a tensor is missing or of another shape.
Errors compare(const TrainingResult& actual, const TrainingResult& expected);

class TinyTraining {
 public:
  TinyTraining();

  TrainingResult train(
      const LayoutCase& layout,
      const std::vector<std::string>& more = {});
  // One rank under the same options of the model; each is trained once.
  const TrainingResult& oracle(const LayoutCase& layout);

  const std::string& dataset() const { return dataset_; }
  // The same tokens, with a mask.
  const std::string& masked_dataset() const { return masked_dataset_; }
  const testing::RunsFolder& folder() const { return folder_; }

 private:
  // The model that adapters train beside, as a folder; made once.
  std::filesystem::path base_of(const LayoutCase& layout);

  testing::RunsFolder folder_;
  std::string dataset_;
  std::string masked_dataset_;
  std::map<std::string, TrainingResult> oracles_;
};

}  // namespace brigade
