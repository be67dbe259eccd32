async fn transfer(from: u64, to: u64) -> Result<(), ApiError> {
    __private::for_editor!(__private::option::key, __private::option::lease);
    let (outside, inside) = __private::entry();
    __private::locked(
        outside,
        |error| <Result<(), ApiError> as __private::FromLockError>::from_lock_error(error),
        async move {
            if let Some(value) = __private::returns::<Result<(), ApiError>>() {
                return value;
            }
            let from = from;
            let to = to;
            __private::for_editor!(::core::format_args!("account:{from}"));
            let key1 = __private::key(
                const { &__private::Template::new("account:{from}") },
                &[__private::text("account:"), __private::value(&&from)],
            );
            let key2 = __private::exact_key(owner(to).await?);
            let key = [key1, key2];
            let manager = __private::default_manager();
            let options = __private::options();
            let lease = inside.acquire_all(manager, key, options).await;
            ({ bank::transfer(from, to, lease.fencing_tokens()).await })
        },
    )
    .await
}
