#include <gtest/gtest.h>

#include <thread>

#include "brigade/comm/world.h"
#include "tests/support/free_port.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

// A host that joins an elastic job later has not counted the others' restarts.
TEST(OpenStore, RanksMeetWhateverRestartsTheirHostsCount) {
  const testing::FreePort port;
  LaunchEnvironment environment{.world_size = 2};
  environment.store.kind = StoreAddress::Kind::kTcp;
  environment.store.host = "127.0.0.1";
  environment.store.port = port.number();
  std::thread other([environment]() mutable {
    environment.rank = 1;
    environment.restart_count = 3;
    open_store(environment, testing::kNever)->set("from the joined", "hello");
  });
  const StorePtr store = open_store(environment, testing::kNever);
  EXPECT_EQ(store->get("from the joined"), "hello");
  other.join();
}

}  // namespace
}  // namespace brigade
