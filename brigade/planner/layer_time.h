// The time of one layer, of the embedding and of the head for one micro-batch
// on one rank, by what it is spent on.
//
// PURE.
#pragma once

#include <array>

#include "brigade/machine/device_time.h"
#include "brigade/planner/training.h"

namespace brigade::planner {

// Seconds.
struct PassTime {
  double products = 0;
  double attention = 0;
  double elementwise = 0;
  double recompute = 0;  // forward work done again
  double host = 0;       // kernels that are launched one after another
  double data = 0;       // tokens and targets, copied to the device
  double tp = 0;         // exposed communication of each axis
  double cp = 0;
  double ep = 0;
  double pp = 0;  // blocking transfers between stages
  double dp = 0;  // gathered weights and reduced gradients of zero stages 2, 3

  double computation() const {
    return products + attention + elementwise + recompute + host;
  }
  double total() const;
  PassTime& operator+=(const PassTime& other);
};

// A part of PassTime, for code that lists or adds up all of them.
struct PassPart {
  double PassTime::*seconds;
  const char* name;   // "tp"
  const char* title;  // "tp, exposed"
  // Whether it is exposed communication inside layers.
  bool is_layer_traffic = false;
};
inline constexpr auto kPassParts = std::to_array<PassPart>({
    {&PassTime::products, "products", "matrix products"},
    {&PassTime::attention, "attention", "attention"},
    {&PassTime::elementwise, "elementwise", "elementwise ops"},
    {&PassTime::recompute, "recomputation", "recomputation"},
    {&PassTime::host, "host", "host, launching one kernel after another"},
    {&PassTime::data, "data", "data, to the device"},
    {&PassTime::tp, "tp", "tp, exposed", true},
    {&PassTime::cp, "cp", "cp, exposed", true},
    {&PassTime::ep, "ep", "ep, exposed", true},
    {&PassTime::pp, "pp", "pp, blocking transfers"},
    {&PassTime::dp, "zero", "dp of each micro-batch (zero 2, 3), exposed"},
});

inline double PassTime::total() const {
  double sum = 0;
  for (const PassPart& part : kPassParts)
    sum += this->*part.seconds;
  return sum;
}
PassTime operator*(double factor, PassTime time);

// The two halves of a backward pass, and what comes before it.
struct PartTime {
  PassTime forward;
  PassTime backward_input;  // recomputation included
  PassTime backward_weight;
  void add(double factor, const PartTime& other);
  PassTime total() const;
};
inline constexpr PassTime PartTime::*kPasses[] = {
    &PartTime::forward,
    &PartTime::backward_input,
    &PartTime::backward_weight};

// What a layer's ops are, where its tokens lie and what crosses ranks:
//
//   norm, q/k/v products, rotary, attention, o product, residual,
//   norm, up (and gate) products, activation, down product, residual
//
// tp: two all-reduces of [tokens, C] in each pass, or with sequence parallel
// the all-gather and reduce-scatter that they consist of.
// cp: keys and values travel round the ring while attention runs on what is
// there; in backward once more, and their gradients with them.
//
// With experts, in place of the MLP: the router, rows brought together by
// expert, up (and gate), activation and down once per expert, the weighted sum;
// the shared expert beside them. Each expert is taken to have as many tokens.
// ep: rows to the ranks of their experts and back, and in backward again; all
// exposed.
//
// `window`: the tokens that a query sees in this layer; 0: all before it.
PartTime layer_time(
    const Training& training,
    const Layout& layout,
    int64_t window,
    LayerMlp mlp = LayerMlp::kOne);
PartTime embedding_time(const Training& training, const Layout& layout);
PartTime head_time(const Training& training, const Layout& layout);

// What communication takes that runs beside computation: what is longer, and
// what the computation loses to it.
double exposed_beside(
    const machine::Constants& constants,
    double communication,
    double computation);

// Mean number of keys that a query of a causal sequence sees.
double mean_keys(int64_t sequence_tokens, int64_t sliding_window);

}  // namespace brigade::planner
