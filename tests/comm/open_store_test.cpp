#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "brigade/comm/world.h"

namespace brigade {
namespace {

constexpr std::chrono::seconds kTimeout{10};

int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(socket, generic, size), 0);
  EXPECT_EQ(::getsockname(socket, generic, &size), 0);
  ::close(socket);
  return ntohs(address.sin_port);
}

// A host that joins an elastic job has not seen the restarts of the others.
TEST(OpenStore, RanksMeetWhateverRestartsTheirHostsCount) {
  LaunchEnvironment environment{.world_size = 2};
  environment.store.kind = StoreAddress::Kind::kTcp;
  environment.store.host = "127.0.0.1";
  environment.store.port = free_port();
  std::thread other([environment]() mutable {
    environment.rank = 1;
    environment.restart_count = 3;
    open_store(environment, kTimeout)->set("from the joined", "hello");
  });
  const StorePtr store = open_store(environment, kTimeout);
  EXPECT_EQ(store->get("from the joined"), "hello");
  other.join();
}

}  // namespace
}  // namespace brigade
