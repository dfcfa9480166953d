#include "brigade/ops/soft_targets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>

#include <limits>
#include <optional>

#include "brigade/base/error.h"
#include "brigade/ops/cross_entropy.h"

namespace brigade::ops {
namespace {

namespace F = torch::nn::functional;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kTaughtTokens = 11;
constexpr int64_t kTaughtColumns = 6;
constexpr int64_t kTaughtVocabulary = 23;

struct Lesson {
  Tensor hidden, weight, targets;
  Tensor teacher;  // log-probabilities of all tokens
  explicit Lesson(torch::ScalarType dtype = torch::kDouble) {
    torch::manual_seed(3);
    hidden = torch::randn({kTaughtTokens, kTaughtColumns}).to(dtype);
    weight = torch::randn({kTaughtVocabulary, kTaughtColumns}).to(dtype);
    targets = torch::randint(
        kTaughtVocabulary, {kTaughtTokens}, torch::dtype(torch::kLong));
    targets[4] = -100;
    teacher = torch::log_softmax(
        torch::randn({kTaughtTokens, kTaughtVocabulary}) * 2, 1);
  }
  SoftTargets best(int64_t k, double share) const {
    const auto [values, places] = teacher.topk(k, 1);
    return {places, values, share};
  }
};

// More tokens than a panel of the CPU's kernel and more vocabulary than a tile,
// in chunks that fill neither, with a teacher that likes neighbours.
struct LongLesson : Lesson {
  LongLesson() : Lesson(torch::kBFloat16) {
    constexpr int64_t kTokens = 70;
    constexpr int64_t kColumns = 40;
    constexpr int64_t kVocabulary = 301;
    hidden = (torch::randn({kTokens, kColumns}) * 0.5).to(torch::kBFloat16);
    weight = (torch::randn({kVocabulary, kColumns}) * 0.5).to(torch::kBFloat16);
    targets =
        torch::randint(kVocabulary, {kTokens}, torch::dtype(torch::kLong));
    targets[40] = -100;
    teacher = torch::log_softmax(
        torch::randn({kTokens, kVocabulary}) * 2 -
            (torch::arange(kVocabulary) - 100).abs() / 20,
        1);
    // Likely targets, and the first and the last of the vocabulary.
    targets.narrow(0, 0, 20).copy_(teacher.narrow(0, 0, 20).argmax(1));
    targets[20] = 0;
    targets[21] = kVocabulary - 1;
  }
};

// With the teacher's tokens as classes and all others as one more, by torch's
// functions of whole logits: the sum over tokens that count.
Tensor whole_loss(
    const Lesson& lesson,
    const Tensor& hidden,
    const Tensor& weight,
    const SoftTargets& teacher,
    std::optional<double> cap) {
  Tensor logits = hidden.matmul(weight.t());
  if (cap)
    logits = torch::tanh(logits / *cap) * *cap;
  const Tensor log_q = torch::log_softmax(logits, 1);
  Tensor classes = log_q.gather(1, teacher.ids);
  Tensor expected = teacher.log_probs.to(torch::kDouble);
  if (teacher.ids.size(1) < lesson.weight.size(0)) {
    const Tensor others =
        log_q.scatter(1, teacher.ids, -std::numeric_limits<double>::infinity());
    classes = torch::cat({classes, others.logsumexp(1, true)}, 1);
    expected =
        torch::cat({expected, (1 - expected.exp().sum(1, true)).log()}, 1);
  }
  const Tensor divergence =
      F::kl_div(
          classes,
          expected,
          F::KLDivFuncOptions().reduction(torch::kNone).log_target(true))
          .sum(1);
  const Tensor counts = (lesson.targets != -100).to(torch::kDouble);
  const Tensor hard = F::cross_entropy(
      logits,
      lesson.targets,
      F::CrossEntropyFuncOptions().reduction(torch::kNone));
  return (counts * divergence * teacher.weight + hard * (1 - teacher.weight))
      .sum();
}

struct Learned {
  Tensor loss, dhidden, dweight;
};

template <typename Loss>
Learned learn(const Lesson& lesson, torch::ScalarType dtype, Loss loss) {
  const Tensor hidden = lesson.hidden.to(dtype).clone().requires_grad_(true);
  const Tensor weight = lesson.weight.to(dtype).clone().requires_grad_(true);
  const Tensor value = loss(hidden, weight);
  value.backward();
  return {
      value.detach().to(torch::kDouble),
      hidden.grad().to(torch::kDouble),
      weight.grad().to(torch::kDouble)};
}

double distance(const Tensor& found, const Tensor& expected) {
  return ((found - expected).norm() / expected.norm()).item<double>();
}

TEST(SoftTargets, LossAndGradientsAreTorchsOfWholeLogits) {
  for (const auto dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    const Lesson lesson(dtype);
    for (const int64_t k : {int64_t{1}, int64_t{5}, kTaughtVocabulary}) {
      for (const double share : {0.0, 0.3, 1.0}) {
        for (const std::optional<double> cap :
             {std::optional<double>(), std::optional(3.0)}) {
          const SoftTargets teacher = lesson.best(k, share);
          const Learned expected =
              learn(lesson, torch::kDouble, [&](auto hidden, auto weight) {
                return whole_loss(lesson, hidden, weight, teacher, cap);
              });
          for (const Kernels kernels : {Kernels::kAuto, Kernels::kAten}) {
            const Learned found =
                learn(lesson, dtype, [&](auto hidden, auto weight) {
                  return linear_cross_entropy(
                      hidden,
                      weight,
                      lesson.targets,
                      {.row_chunk = 4,
                       .kernels = kernels,
                       .logit_soft_cap = cap,
                       .teacher = teacher});
                });
            SCOPED_TRACE(
                ::testing::Message() << dtype << " k " << k << " w " << share);
            const double limit = dtype == torch::kBFloat16 ? 8e-3 : 1e-5;
            EXPECT_LT(distance(found.loss, expected.loss), 1e-5);
            EXPECT_LT(distance(found.dhidden, expected.dhidden), limit);
            EXPECT_LT(distance(found.dweight, expected.dweight), limit);
          }
        }
      }
    }
  }
}

TEST(SoftTargets, AgreeWithFloat64ForABfloat16Head) {
  const LongLesson lesson;
  for (const int64_t k :
       {int64_t{1}, int64_t{32}, int64_t{100}, int64_t{301}}) {
    for (const double share : {0.0, 0.3, 1.0}) {
      const SoftTargets teacher = lesson.best(k, share);
      const Learned expected =
          learn(lesson, torch::kDouble, [&](auto hidden, auto weight) {
            return whole_loss(lesson, hidden, weight, teacher, std::nullopt);
          });
      for (const KeepLogits keep : {KeepLogits::kAlways, KeepLogits::kNever}) {
        SCOPED_TRACE(::testing::Message() << "k " << k << " w " << share);
        const Learned found =
            learn(lesson, torch::kBFloat16, [&](auto hidden, auto weight) {
              return linear_cross_entropy(
                  hidden,
                  weight,
                  lesson.targets,
                  {.row_chunk = 50,
                   .keep_logits = keep,
                   .kernels = Kernels::kCpu,
                   .teacher = teacher});
            });
        EXPECT_LT(distance(found.loss, expected.loss), 1e-5);
        EXPECT_LT(distance(found.dhidden, expected.dhidden), 8e-3);
        EXPECT_LT(distance(found.dweight, expected.dweight), 8e-3);
      }
    }
  }
}

TEST(SoftTargets, AStudentThatIsItsTeacherHasNothingToLearn) {
  Lesson lesson(torch::kFloat);
  lesson.teacher =
      torch::log_softmax(lesson.hidden.matmul(lesson.weight.t()), 1);
  const Learned found =
      learn(lesson, torch::kFloat, [&](auto hidden, auto weight) {
        return linear_cross_entropy(
            hidden, weight, lesson.targets, {.teacher = lesson.best(3, 1)});
      });
  EXPECT_NEAR(found.loss.item<double>(), 0, 1e-5);
  EXPECT_LT(found.dhidden.abs().max().item<double>(), 1e-5);
}

TEST(SoftTargets, StayFiniteWhereTheStudentLeavesNothingOutside) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    Lesson lesson(dtype);
    lesson.hidden *= 400;
    for (const int64_t k : {int64_t{1}, int64_t{3}, kTaughtVocabulary}) {
      SoftTargets teacher = lesson.best(k, 1);
      teacher.ids =
          std::get<1>(lesson.hidden.matmul(lesson.weight.t()).topk(k, 1));
      const Learned found = learn(lesson, dtype, [&](auto hidden, auto weight) {
        return linear_cross_entropy(
            hidden, weight, lesson.targets, {.teacher = teacher});
      });
      EXPECT_TRUE(found.loss.isfinite().item<bool>());
      EXPECT_TRUE(found.dhidden.isfinite().all().item<bool>());
      EXPECT_TRUE(found.dweight.isfinite().all().item<bool>());
    }
  }
}

TEST(SoftTargets, IdsOutsideTheVocabularyAreNamed) {
  const Lesson lesson(torch::kFloat);
  SoftTargets teacher = lesson.best(2, 1);
  teacher.ids[3][1] = kTaughtVocabulary;
  EXPECT_THAT(
      [&] {
        linear_cross_entropy(
            lesson.hidden, lesson.weight, lesson.targets, {.teacher = teacher});
      },
      ThrowsMessage<DataError>(
          HasSubstr("go to 23, outside the vocabulary of 23")));
}

}  // namespace
}  // namespace brigade::ops
