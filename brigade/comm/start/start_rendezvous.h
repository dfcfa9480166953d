// The rendezvous of a run's ranks through the store: before they connect to one
// another, all find out that every rank is there, or why one is not.
//
// exchange() is collective over all ranks. A rank that cannot start calls
// fail() instead; every other rank's exchange() then throws that first cause,
// with rank and host. Rank 0 collects and answers, so a rank costs two keys and
// one wait per exchange.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/store.h"

namespace brigade {

// The ranks of the rendezvous, and how long each waits.
struct StartRendezvousOptions {
  int rank = 0;
  int size = 1;
  std::string host;  // of this rank, for messages
  // The timeout of each exchange.
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  // The time that rank 0 serves ranks that have not yet read why the start
  // failed; at most `timeout`.
  std::chrono::milliseconds linger{std::chrono::seconds(15)};
  // Called on rank 0 while ranks are missing, at most every `report_every`.
  std::function<void(const std::string&)> on_progress;
  std::chrono::milliseconds report_every{std::chrono::seconds(5)};
};

class StartRendezvous {
 public:
  // Made once per run and store.
  StartRendezvous(const StorePtr& store, StartRendezvousOptions options);

  // Collective. Returns every rank's text, by rank. Throws an Error of the
  // first failed rank's kind that names its rank and host; CommError that names
  // the ranks that did not arrive within the timeout; ConfigError if ranks were
  // started for worlds of different sizes, and in a process whose rank another
  // one has taken.
  std::vector<std::string> exchange(const std::string& mine);

  // Called before a rank fails for a reason that every rank finds in the texts
  // of the last exchange: rank 0 waits until all have read them or `linger` is
  // over. Other ranks do nothing.
  void wait_for_readers();

  // Reports that this rank cannot start, and why. Returns once the store holds
  // the cause; on rank 0 once all have read it or `linger` is over. Does not
  // throw.
  void fail(const Error& cause) noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  // Claims this rank for this process. A second process of the same rank is
  // found when it claims, or by check_claim() once all are there.
  void claim();
  void check_claim();
  // On rank 0: collects all ranks' texts of this round, or the reason why it
  // cannot.
  std::string collect(const std::string& round);
  // The answer to all ranks if one was started for a world of another size.
  std::string refuse_size(int rank, int size);
  std::string missing_ranks(
      const std::vector<std::optional<std::string>>& texts) const;
  // Returns the texts of an answer, or throws the error that it holds.
  std::vector<std::string> read(const std::string& answer) const;

  StorePtr store_;
  StartRendezvousOptions options_;
  int round_ = -1;     // of the last exchange
  std::string claim_;  // what this process wrote; "": nothing yet
};

}  // namespace brigade
