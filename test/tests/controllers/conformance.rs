//! The API server in memory, which the controllers' unit tests use, is checked against a real one.

use hostloop_fake_api::conformance::{conforms, conforms_in_cluster};
use hostloop_test::front::objects::{Objects, Place, client};

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_in_memory_is_like_this_one() {
    let plane = crate::plane(false).await;
    let objects = Objects::connect(&plane.kubeconfig()).await;
    let namespace = format!("conformance-{}", std::process::id());
    objects.namespace(&namespace).await;
    let client = client(&plane.kubeconfig()).await;
    conforms(&client, &namespace).await;
    conforms_in_cluster(&client, &namespace).await;
    objects
        .delete(&Place::of("Namespace", "", &namespace))
        .await;
}
