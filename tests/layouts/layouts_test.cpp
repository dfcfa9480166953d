// Any layout is the same program: it trains to the same losses, gradients and
// weights as one rank does, and one rank to the same as PyTorch.
//
// `make test` runs quick_layouts(); with BRIGADE_LAYOUTS=all (make
// test-layouts) all_layouts() are run, with BRIGADE_LAYOUTS=aten
// aten_layouts().
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/torch_dtype.h"
#include "tests/support/compare.h"
#include "tests/support/write_tensors.h"
#include "tiny_training.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

struct Tolerances {
  double loss = 2e-5;
  double gradient = 1e-4;
  double weight = 1e-4;
};

Tolerances tolerances(const LayoutCase& layout) {
  // What one rank's two kernel sets differ by, without any layout, is 3e-2 for
  // gradients of magnitudes and 9e-2 for B, which begins at zero.
  if (layout.dtype == "bfloat16" && layout.adapter_form.starts_with("dora"))
    return {2e-2, 2e-1, 2e-1};
  if (layout.dtype == "bfloat16")
    return {2e-2, 2e-2, 2e-2};
  // One of some ten thousand choices may be between experts that tie but for
  // last bits, whose gradients that token changes: which one, and in which
  // layout, depends on the processor.
  if (layout.steps > 6)
    return {.gradient = 5e-3, .weight = 5e-3};
  if (layout.model.starts_with("mixtral") ||
      layout.model.find("moe") != std::string::npos)
    return {.weight = 5e-3};
  return {};
}

TinyTraining& tiny_training() {
  static TinyTraining training;
  return training;
}

// Empty: they agree.
std::string complaint(
    const LayoutCase& layout,
    const TrainingResult& actual,
    const TrainingResult& expected,
    const Errors& errors) {
  const std::string name = name_of(layout);
  if (!expected.failure.empty())
    return fmt::format("the oracle of {}: {}\n", name, expected.failure);
  if (!actual.failure.empty())
    return fmt::format("{}: {}\n", name, actual.failure);
  const Tolerances allowed = tolerances(layout);
  std::string text;
  // Written so that a NaN is a complaint.
  if (!(errors.loss <= allowed.loss))
    text += fmt::format("{}: losses differ by {:.1e}\n", name, errors.loss);
  if (!(errors.gradient <= allowed.gradient))
    text += fmt::format(
        "{}: the gradient of {} differs by {:.1e} of its norm\n",
        name,
        errors.gradient_name,
        errors.gradient);
  if (!(errors.weight <= allowed.weight))
    text += fmt::format(
        "{}: the weight {} differs by {:.1e} of its norm\n",
        name,
        errors.weight_name,
        errors.weight);
  return text;
}

// One line of the table: a layout with all that was tried under it.
struct TableLine {
  LayoutCase layout;
  int runs = 0;
  int failed = 0;
  Errors worst;

  bool takes(const LayoutCase& other) const {
    return layout.dims == other.dims && layout.dtype == other.dtype;
  }
};

void print_table(const std::vector<TableLine>& lines) {
  fmt::print(
      "\nThe worst error of each layout: losses relative to one rank's, "
      "tensors to their norms\n{:<18} {:<8} {:>5} {:>6}  {:>8} {:>8} {:>8}\n",
      "layout",
      "dtype",
      "runs",
      "failed",
      "loss",
      "gradient",
      "weight");
  for (const TableLine& line : lines)
    fmt::print(
        "{:<18} {:<8} {:>5} {:>6}  {:>8.1e} {:>8.1e} {:>8.1e}\n",
        name_of(line.layout.dims),
        line.layout.dtype,
        line.runs,
        line.failed,
        line.worst.loss,
        line.worst.gradient,
        line.worst.weight);
  std::fflush(stdout);
}

std::vector<LayoutCase> chosen_layouts() {
  const char* variable = ::getenv("BRIGADE_LAYOUTS");
  const std::string chosen = variable == nullptr ? "" : variable;
  if (chosen == "all")
    return all_layouts();
  return chosen == "aten" ? aten_layouts() : quick_layouts();
}

class Layout : public ::testing::TestWithParam<LayoutCase> {
 protected:
  static void TearDownTestSuite() { print_table(table_); }
  static void note(const Errors& errors, bool failed) {
    if (table_.empty() || !table_.back().takes(GetParam()))
      table_.push_back({.layout = GetParam(), .worst = {}});
    ++table_.back().runs;
    table_.back().failed += failed;
    table_.back().worst.include(errors);
  }

 private:
  static std::vector<TableLine> table_;
};

std::vector<TableLine> Layout::table_;

TEST_P(Layout, TrainsAsOneRankDoes) {
  const LayoutCase& layout = GetParam();
  const TrainingResult& expected = tiny_training().oracle(layout);
  ASSERT_EQ(expected.failure, "");
  ASSERT_EQ(expected.losses.size(), static_cast<size_t>(layout.steps));
  ASSERT_EQ(
      expected.eval_losses.size(),
      static_cast<size_t>(layout.steps / kEvalEvery));
  if (layout.adapter > 0) {
    // A, B and magnitudes of the linears of 4 layers.
    size_t linears = 4 * 7;
    if (layout.model == "mixtral")
      linears = 4 * (4 + 1 + 4 * 3);
    else if (layout.model == "qwen2_moe")
      linears = 7 + 3 * (4 + 1 + 8 * 3 + 4);
    ASSERT_EQ(
        expected.weights.size(),
        linears * (layout.adapter_form.starts_with("dora") ? 3 : 2));
    EXPECT_GT(expected.grad_norms.front(), 0.0);
  } else if (layout.model == "llama") {
    ASSERT_EQ(expected.weights.size(), layout.tied ? 38U : 39U);
  }
  // The clipping is at work, and there is something to learn.
  if (layout.adapter == 0) {
    EXPECT_GT(expected.grad_norms.front(), 1.0);
  }
  if (layout.adapter == 0 && layout.dtype == "float32" &&
      layout.optimizer == "adamw") {
    EXPECT_LT(expected.losses.back(), expected.losses.front() - 1);
  }

  const TrainingResult actual = tiny_training().train(layout);
  const Errors errors = compare(actual, expected);
  const std::string text = complaint(layout, actual, expected, errors);
  note(errors, !text.empty());
  EXPECT_EQ(text, "");
}

// The layouts with documents would show nothing otherwise.
TEST(LayoutOracle, TrainsDifferentlyWithSeparateDocuments) {
  EXPECT_NE(
      tiny_training().oracle({.documents = true}).losses,
      tiny_training().oracle({}).losses);
}

TEST(LayoutOracle, TrainsDifferentlyOnPackedDocuments) {
  EXPECT_NE(
      tiny_training().oracle({.packed = true}).losses,
      tiny_training().oracle({.documents = true}).losses);
}

TEST(LayoutOracle, TrainsDifferentlyWhereExpertsHaveACapacity) {
  EXPECT_NE(
      tiny_training().oracle({.model = "mixtral_with_capacity"}).losses,
      tiny_training().oracle({.model = "mixtral"}).losses);
}

TEST(LayoutOracle, TrainsDifferentlyWithAMask) {
  EXPECT_NE(
      tiny_training().oracle({.masked = true}).losses,
      tiny_training().oracle({}).losses);
}

TEST(LayoutOracle, TrainsDifferentlyWithDropoutAndWithMagnitudes) {
  const auto& plain = tiny_training().oracle({.adapter = 3}).losses;
  for (const char* form : {"dropout", "dora", "dora_dropout"})
    EXPECT_NE(
        tiny_training().oracle({.adapter = 3, .adapter_form = form}).losses,
        plain)
        << form;
}

INSTANTIATE_TEST_SUITE_P(
    Any,
    Layout,
    ::testing::ValuesIn(chosen_layouts()),
    [](const auto& test) { return name_of(test.param); });

std::vector<double> numbers_of(const torch::Tensor& tensor) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < tensor.numel(); ++i)
    numbers.push_back(tensor[i].item<double>());
  return numbers;
}

// The last windows of 48 tokens are held out, rounded down; a window needs the
// token behind it as its last target.
int64_t first_held_out_window(const std::string& dataset) {
  const auto tokens = static_cast<int64_t>(fs::file_size(dataset + ".bin")) / 2;
  const int64_t windows = (tokens - 1) / 48;
  return windows -
         static_cast<int64_t>(static_cast<double>(windows) * kEvalFraction);
}

class PyTorchOracle : public ::testing::TestWithParam<LayoutCase> {};

TEST_P(PyTorchOracle, TrainsAsOneRankDoes) {
  constexpr const char* kPython = "/usr/bin/python3";
  constexpr int kNoTorch = 3;
  const LayoutCase& one_rank = GetParam();
  TinyTraining& training = tiny_training();
  const TrainingResult& actual = training.oracle(one_rank);
  ASSERT_EQ(actual.failure, "");

  // A step that changes nothing leaves the weights that training starts from.
  const TrainingResult start =
      training.train(one_rank, {"training.learning_rate=0"});
  ASSERT_EQ(start.failure, "");
  const fs::path folder = training.folder() / "pytorch";
  fs::create_directory(folder);
  write_tensors(folder / "model.safetensors", start.weights);
  auto config = testing::tiny_run(training.dataset())["model"]["config"];
  config["tie_word_embeddings"] = one_rank.tied;
  testing::write_file(folder / "config.json", config.dump());
  fs::copy_file(training.dataset() + ".bin", folder / "tokens.bin");
  if (one_rank.masked)
    fs::copy_file(training.masked_dataset() + ".mask", folder / "tokens.mask");
  const nlohmann::json settings = {
      {"steps", one_rank.steps},
      {"sequences", sequences_of_step(1)},
      {"seq_length", 48},
      {"learning_rate", 1e-2},
      {"adam_eps", kAdamEps},
      {"grad_clip", 0.5},
      {"eval_every", kEvalEvery},
      {"eval_begin", first_held_out_window(training.dataset())}};
  testing::write_file(folder / "training.json", settings.dump());

  const fs::path out = folder / "out.safetensors";
  const auto python =
      testing::StartedProgram(
          kPython,
          {BRIGADE_SOURCE_DIR "/tests/layouts/reference_training.py",
           folder.string(),
           out.string()})
          .wait();
  if (python.exit_code == kNoTorch) {
    fs::remove_all(folder);
    GTEST_SKIP() << kPython << " has no torch (Debian: python3-torch)";
  }
  ASSERT_EQ(python.exit_code, 0) << python.err;

  const SafetensorsFile reference(out);
  TrainingResult expected;
  expected.norms_add_one = actual.norms_add_one;
  expected.losses = numbers_of(as_tensor(reference.at("losses")));
  expected.eval_losses = numbers_of(as_tensor(reference.at("eval_losses")));
  for (const auto& [name, weight] : actual.weights) {
    // exp_avg after one step from nothing, betas 0.9 and 0.999.
    expected.gradients[name] =
        0.1 * as_tensor(reference.at("gradient." + name));
    expected.weights[name] = as_tensor(reference.at("weight." + name));
  }
  fs::remove_all(folder);
  const Errors errors = compare(actual, expected);
  EXPECT_EQ(complaint(one_rank, actual, expected, errors), "");
  RecordProperty("loss_error", fmt::format("{:.1e}", errors.loss));
  RecordProperty("gradient_error", fmt::format("{:.1e}", errors.gradient));
  RecordProperty("weight_error", fmt::format("{:.1e}", errors.weight));
}

INSTANTIATE_TEST_SUITE_P(
    OneRank,
    PyTorchOracle,
    ::testing::Values(
        LayoutCase{.tied = true},
        LayoutCase{.tied = false},
        LayoutCase{.tied = true, .masked = true}),
    [](const auto& test) {
      return std::string(test.param.tied ? "tied" : "untied") +
             (test.param.masked ? "_masked" : "");
    });

}  // namespace
}  // namespace brigade
